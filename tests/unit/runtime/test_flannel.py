"""flannel's lease as a podman network and a rule of the firewall; the parts that need no host."""

import ipaddress

import pytest

from ozymandias.runtime import flannel
from ozymandias.runtime.flannel import COMMENT, parse_lease

TEXT = """\
FLANNEL_NETWORK=10.78.0.0/16
FLANNEL_SUBNET=10.78.34.1/24
FLANNEL_MTU=1450
FLANNEL_IPMASQ=true
"""
NETWORK = ipaddress.IPv4Network("10.78.0.0/16")
OURS = f'-A POSTROUTING -s 10.78.0.0/16 -d 10.78.0.0/16 -m comment --comment "{COMMENT}" -j ACCEPT'
HOST_PORTS = "-A POSTROUTING -j NETAVARK-HOSTPORT-MASQ"
NETAVARK = "-A POSTROUTING -s 10.78.34.0/24 -j NETAVARK-A2A9153952B75"


def test_a_lease_is_read() -> None:
    """The subnet of this host, its gateway, the network of all and the tunnel's MTU."""
    lease = parse_lease(TEXT)
    assert lease.network == NETWORK
    assert str(lease.subnet) == "10.78.34.0/24" and str(lease.gateway) == "10.78.34.1"
    assert lease.mtu == 1450


@pytest.mark.parametrize(
    ("text", "word"),
    [
        ("", "FLANNEL_NETWORK, FLANNEL_SUBNET, FLANNEL_MTU missing"),
        (TEXT.replace("FLANNEL_MTU=1450", ""), "FLANNEL_MTU missing"),
        (TEXT.replace("1450", "many"), "'many' is not an MTU"),
        (TEXT.replace("1450", "100"), "'100' is not an MTU"),
        (TEXT.replace("10.78.34.1/24", "10.79.34.1/24"), "is not in network"),
        (TEXT.replace("10.78.34.1/24", "10.78.34.1/31"), "no room"),
        (TEXT.replace("10.78.34.1/24", "nonsense"), "nonsense"),
    ],
)
def test_what_is_no_lease_is_refused_in_words(text: str, word: str) -> None:
    """Half a file, or one of nonsense, says what is wrong with it."""
    with pytest.raises(ValueError, match=word):
        parse_lease(text)


def test_the_network_is_podmans_and_ours() -> None:
    """Subnet, gateway and MTU are the lease's; the label says whose it is; names are not its."""
    document = flannel.network_document(parse_lease(TEXT), "ozymandias", "c1")
    assert document["subnets"] == [{"subnet": "10.78.34.0/24", "gateway": "10.78.34.1"}]
    assert document["options"] == {"mtu": "1450"}
    assert document["labels"] == {"ozymandias.cluster": "c1"}
    assert not document["dns_enabled"] and len(document["id"]) == 64
    assert len(document["network_interface"]) <= 15


def test_only_the_time_it_was_made_may_differ() -> None:
    """The same network is left alone, and another subnet is seen."""
    wanted = flannel.network_document(parse_lease(TEXT), "ozymandias", "c1")
    other = flannel.network_document(parse_lease(TEXT.replace("34", "35")), "ozymandias", "c1")
    assert flannel.is_same(wanted | {"created": "some day"}, wanted)
    assert not flannel.is_same(other, wanted) and not flannel.is_same(None, wanted)


@pytest.mark.parametrize(
    ("lines", "is_in_front"),
    [
        ([OURS, NETAVARK], True),
        ([HOST_PORTS, OURS, NETAVARK], True),
        ([NETAVARK, OURS], False),
        ([NETAVARK], False),
        ([], False),
        ([OURS.replace("10.78", "10.99"), NETAVARK], False),
    ],
)
def test_the_rule_must_come_before_masquerading(lines: list[str], is_in_front: bool) -> None:
    """Before netavark's rule for the subnet; its rule for host ports may come first."""
    listing = "\n".join(["-P POSTROUTING ACCEPT", *lines])
    assert flannel.is_in_front(listing, NETWORK) is is_in_front


def test_rules_of_a_former_network_are_found() -> None:
    """Ours by their comment, for another network than now; on leaving all of them."""
    old = OURS.replace("10.78.0.0", "10.99.0.0")
    listing = "\n".join(["-P POSTROUTING ACCEPT", NETAVARK, old, OURS])
    assert flannel.stale_rules(listing, NETWORK) == [
        flannel.rule(ipaddress.IPv4Network("10.99.0.0/16"))
    ]
    assert len(flannel.stale_rules(listing, None)) == 2
