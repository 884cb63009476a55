"""Subnets and ports: the first that nobody has."""

import socket
from ipaddress import IPv4Network

import pytest

from ozymandias.cluster import addresses
from ozymandias.problems import ProblemError

ROUTES = """\
Iface\tDestination\tGateway \tFlags\tRefCnt\tUse\tMetric\tMask\t\tMTU\tWindow\tIRTT
eth0\t00000000\t010200C0\t0003\t0\t0\t0\t00000000\t0\t0\t0
eth0\t000200C0\t00000000\t0001\t0\t0\t0\t00FFFFFF\t0\t0\t0
podman1\t0040590A\t00000000\t0001\t0\t0\t0\t00FFFFFF\t0\t0\t0
"""


def test_routes_are_read_without_the_default() -> None:
    """The default route leads everywhere and takes nothing."""
    assert addresses.routes(ROUTES) == [IPv4Network("192.0.2.0/24"), IPv4Network("10.89.64.0/24")]


@pytest.mark.parametrize(
    ("taken", "expected"),
    [
        ([], "10.89.64.0/24"),
        (["10.89.64.0/24"], "10.89.65.0/24"),
        (["10.89.64.0/20"], "10.89.80.0/24"),  # a larger one covers sixteen of ours
        (["10.89.64.128/25", "10.89.65.7/32"], "10.89.66.0/24"),  # smaller ones count, too
        (["0.0.0.0/0"], "10.89.64.0/24"),
        (["192.168.0.0/16"], "10.89.64.0/24"),
    ],
)
def test_the_first_free_subnet_is_chosen(taken: list[str], expected: str) -> None:
    """Nothing that overlaps a taken network is chosen."""
    chosen = addresses.choose_subnet([IPv4Network(text) for text in taken])
    assert str(chosen) == expected
    assert addresses.gateway_of(chosen) == str(chosen.network_address + 1)


def test_a_full_pool_is_a_problem() -> None:
    """Somebody with 10/8 on the machine is told so."""
    with pytest.raises(ProblemError) as caught:
        addresses.choose_subnet([IPv4Network("10.0.0.0/8")])
    assert "10.89.64.0/18" in caught.value.problem.detail


def test_a_subnet_whose_dns_port_is_taken_is_passed_over() -> None:
    """Another program on port 53 of the gateway makes the next subnet the choice."""
    second = addresses.choose_subnet([], lambda subnet: str(subnet) != "10.89.64.0/24")
    assert str(second) == "10.89.65.0/24"
    with pytest.raises(ProblemError) as caught:
        addresses.choose_subnet([], lambda subnet: False)
    assert "Port 53" in caught.value.problem.detail


def test_a_taken_port_that_was_asked_for_is_a_problem() -> None:
    """It is never replaced silently by another one."""
    with socket.socket() as holder:
        holder.bind(("127.0.0.1", 0))
        holder.listen()
        port = holder.getsockname()[1]
        with pytest.raises(ProblemError) as caught:
            addresses.choose_ports(port, 1, 1, "the ingress", "--ingress-port")
        assert str(port) in caught.value.problem.detail
        assert "--ingress-port" in caught.value.problem.hint
        assert addresses.choose_ports(None, port, 1, "the ingress", "--ingress-port") != [port]


def test_free_ports_differ() -> None:
    """Ports chosen together are all different."""
    assert len(set(addresses.free_ports(20))) == 20
    assert len(set(addresses.choose_ports(0, 7400, 3, "the API", "--api-port"))) == 3
