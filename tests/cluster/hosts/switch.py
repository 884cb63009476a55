"""The switch between the hosts: a bridge in a namespace of its own, and what goes wrong on it.

Faults are rules of the bridge, by the ports that a frame comes from and goes to. So everything
between two hosts is hit alike, whatever runs over it: etcd, flannel's tunnel, pods.
"""

from collections.abc import Iterable
from dataclasses import dataclass

from tests.cluster.hosts.cgroups import Cgroups
from tests.cluster.hosts.namespace import Namespace

TABLE = "bridge faults"


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """Frames from one port to another get lost. "" means any port."""

    source: str = ""
    target: str = ""
    percent: int = 100

    def rule(self) -> str:
        parts = [f'iifname "{self.source}"'] if self.source else []
        parts += [f'oifname "{self.target}"'] if self.target else []
        parts += [f"numgen random mod 100 < {self.percent}"] if self.percent < 100 else []
        return " ".join([*parts, "drop"])


def ruleset(faults: Iterable[Fault]) -> str:
    """For nft: all former rules replaced at once."""
    return "\n".join(
        [
            f"add table {TABLE}",
            f"delete table {TABLE}",
            f"table {TABLE} {{",
            "chain forward {",
            "type filter hook forward priority 0; policy accept;",
            *(fault.rule() for fault in faults),
            "}",
            "}",
            "",
        ]
    )


class Switch(Namespace):
    def __init__(self, cgroups: Cgroups) -> None:
        super().__init__("switch", "", cgroups)
        self._faults: list[Fault] = []

    def start(self) -> None:
        self.ip("link add br0 type bridge", "link set br0 up")

    def plug(self, other: Namespace, prefix_length: int) -> None:
        """A cable: eth0 over there, a port of that name here. It goes with the other side.

        The card's address stays over a reboot, or peers would send to the former one for a while.
        """
        self.run("ip", "link", "delete", other.name, check=False)  # of a former life, going slowly
        card = "02:00:" + ":".join(f"{int(part):02x}" for part in other.address.split("."))
        self.run(
            *("ip", "link", "add", "name", other.name, "type", "veth"),
            *("peer", "name", "eth0", "address", card, "netns", str(other.pid)),
        )
        self.ip(f"link set {other.name} master br0 up")
        other.ip(f"address add {other.address}/{prefix_length} dev eth0", "link set eth0 up")

    def pull(self, other: Namespace, *, out: bool = True) -> None:
        """The cable itself: the other side sees that its link is down."""
        self.ip(f"link set {other.name} {'down' if out else 'up'}")

    def add(self, *faults: Fault) -> None:
        self._faults += faults
        self._apply()

    def clear(self, name: str = "") -> None:
        """Mend everything, or what touches one port."""
        self._faults = [f for f in self._faults if name and name not in (f.source, f.target)]
        self._apply()

    def _apply(self) -> None:
        self.run("nft", "-f", "-", stdin=ruleset(self._faults))
