"""Which network pods get, and whom they ask for names, by the settings."""

import asyncio

import pytest

from ozymandias.daemon.config import Config, NodeConfig, PodmanConfig
from ozymandias.daemon.networking import check_kind, dns_server, ensure
from ozymandias.ports import NetworkFailed, PodNetwork
from ozymandias.problems import ProblemError


def settings(**podman: str) -> Config:
    return Config(node=NodeConfig(address="10.0.0.7"), podman=PodmanConfig(**podman))


@pytest.mark.parametrize(
    ("podman", "expected"),
    [
        ({}, "10.89.64.1"),
        ({"subnet": "10.5.0.0/24"}, "10.5.0.1"),
        ({"network_kind": "flannel"}, "10.0.0.7"),
        ({"network_kind": "flannel", "dns_server": "10.0.0.53"}, "10.0.0.53"),
        ({"dns_server": "10.0.0.53"}, "10.0.0.53"),
    ],
)
def test_whom_pods_ask(podman: dict[str, str], expected: str) -> None:
    """The bridge's gateway on one machine, the host itself with flannel, or who is named."""
    assert dns_server(settings(**podman)) == expected


def test_settings_that_can_not_be() -> None:
    """An unknown kind and a subnet that is none are told with their names."""
    with pytest.raises(ProblemError, match="network_kind: 'calico'"):
        check_kind(settings(network_kind="calico"))
    with pytest.raises(ProblemError, match="subnet"):
        dns_server(settings(subnet="nonsense"))


class LateNetwork:
    """Is there at the third time of asking."""

    def __init__(self) -> None:
        self.asked = 0

    async def ensure(self) -> PodNetwork:
        self.asked += 1
        if self.asked < 3:
            raise NetworkFailed("no subnet yet")
        return PodNetwork(name="pods", subnet="10.1.0.0/24", gateway="10.1.0.1")


def test_a_missing_network_is_told_until_it_is_there(monkeypatch: pytest.MonkeyPatch) -> None:
    """The reason at every try, and then that there is none any more."""
    monkeypatch.setattr("ozymandias.daemon.networking.RETRY_SECONDS", 0.0)
    told: list[str] = []
    asyncio.run(ensure(LateNetwork(), told.append))
    assert told == ["no subnet yet", "no subnet yet", ""]
