"""Several hosts on one switch, a client beside them, and the end of all of it.

    client 10.77.0.254 ──┐
    n1     10.77.0.1   ──┤ switch (a bridge in a namespace of its own)
    n2     10.77.0.2   ──┘

The machine itself has neither address nor route there, and nothing there has a route out. All of it
lives in one directory and in cgroups of one random prefix: `down` finds it by these, also when
whoever called `up` was killed half-way. A reaper waits for that and calls `down` in its place.
"""

import ipaddress
import json
import secrets
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Self, TypeVar

from ozymandias.cluster.state import ProcessId
from tests.cluster.hosts import images
from tests.cluster.hosts.cgroups import Cgroups
from tests.cluster.hosts.host import Host
from tests.cluster.hosts.namespace import Namespace
from tests.cluster.hosts.process import child_of
from tests.cluster.hosts.switch import Fault, Switch

T = TypeVar("T")
BASE = Path("/dev/shm")  # a file system other than the machine's: a layer can't lie on itself
PREFIX = "ozy-hosts-"
NETWORK = ipaddress.IPv4Network("10.77.0.0/24")
CLIENT = str(NETWORK[254])
HOSTS_MAX = 20
ROOT = Path(__file__).resolve().parents[3]


class Hosts:
    """All of them; iterate for the hosts, index by name."""

    def __init__(self, prefix: str) -> None:
        self.prefix = prefix
        self.directory = BASE / prefix
        self._own = Cgroups(prefix, "network")
        self.switch = Switch(self._own)
        self.client = Namespace("client", CLIENT, self._own)
        self._hosts: dict[str, Host] = {}
        self._reaper: subprocess.Popen[bytes] | None = None
        self._held: list[subprocess.Popen[bytes]] = []
        self._images: Path | None = None

    # Making and ending ----------------------------------------------------------------------------

    @classmethod
    def up(
        cls, count: int = 3, *, pods: bool = True, memory_bytes: int = 0, keep: bool = False
    ) -> Self:
        """Hosts that have booted. Without `pods` they have no images: daemons alone.

        With `keep` they outlive this process, until somebody calls `down`.
        """
        hosts = cls(f"{PREFIX}{secrets.token_hex(4)}")
        try:
            hosts.directory.mkdir(mode=0o700)
            if not keep:
                hosts._start_reaper()
            hosts._images = images.storage() if pods else None
            hosts._start_network()
            hosts.add(*(f"n{n}" for n in range(1, count + 1)), memory_bytes=memory_bytes)
        except BaseException:
            hosts.down()
            raise
        return hosts

    def add(self, *names: str, memory_bytes: int = 0) -> list[Host]:
        """More hosts, booted; each has the address of its number in order of making."""
        made = []
        for name in names:
            number = len(self._hosts) + 1
            assert number <= HOSTS_MAX
            directory = self.directory / name
            directory.mkdir()
            cgroups = Cgroups(self.prefix, name)
            address = str(NETWORK[number])
            host = Host(name, address, cgroups, directory, memory_bytes=memory_bytes)
            host.format(self._images)
            self._hosts[name] = host
            made.append(host)
        self._remember()
        for host in made:
            host.power_on()
        each(made, self._finish_boot)
        return made

    def boot(self, *hosts: Host) -> None:
        """Power on, with the disk as it was. Nothing is started on them."""
        for host in hosts:
            host.power_on()
        each(hosts, self._finish_boot)

    def crash(self, *hosts: Host) -> None:
        """A power cut, of several at the same moment."""
        for host in hosts:
            if host.init is not None:
                host.init.kill(signal.SIGKILL)
        for host in hosts:
            host.crash()

    def down(self) -> None:
        """Nothing is left, whatever there was. Fine if nothing is there."""
        everything = Cgroups(self.prefix)
        self.crash(*self)
        everything.kill()
        for holder in self._held:
            holder.wait()
        everything.remove()
        shutil.rmtree(self.directory, ignore_errors=True)
        if self._reaper is not None:
            assert self._reaper.stdin is not None
            self._reaper.stdin.write(b"done\n")
            self._reaper.stdin.close()
            self._reaper.wait()
            self._reaper = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.down()

    @classmethod
    def load(cls, prefix: str) -> Self:
        """Those of another process, as they are now."""
        hosts = cls(prefix)
        document = json.loads((hosts.directory / "hosts.json").read_text())
        for name, address in document["hosts"].items():
            host = Host(name, address, Cgroups(prefix, name), hosts.directory / name)
            host.adopt()
            hosts._hosts[name] = host
        hosts.switch.init = ProcessId.of(document["switch"])
        hosts.client.init = ProcessId.of(document["client"])
        return hosts

    # Finding --------------------------------------------------------------------------------------

    def __iter__(self) -> Iterator[Host]:
        return iter(self._hosts.values())

    def __len__(self) -> int:
        return len(self._hosts)

    def __getitem__(self, name: str) -> Host:
        return self._hosts[name]

    # Faults of the network ------------------------------------------------------------------------

    def partition(self, host: Host, other: Host | None = None, *, one_way: bool = False) -> None:
        """Silence between two hosts, or around one. One way: what the first sends gets lost."""
        self.lose(host, other, percent=100, one_way=one_way)

    def lose(
        self, host: Host, other: Host | None = None, *, percent: int, one_way: bool = False
    ) -> None:
        """Frames get lost, that many of a hundred in each direction."""
        peer = other.name if other else ""
        there = Fault(source=host.name, target=peer, percent=percent)
        back = Fault(source=peer, target=host.name, percent=percent)
        self.switch.add(there, *(() if one_way else (back,)))

    def heal(self, host: Host | None = None) -> None:
        """Mend all faults, or those of one host."""
        self.switch.clear(host.name if host else "")

    # ----------------------------------------------------------------------------------------------

    def _start_network(self) -> None:
        self._own.make()
        for place in (self.switch, self.client):
            command = ("unshare", "--net", "--fork", "--kill-child=KILL", "sleep", "infinity")
            self._held.append(
                subprocess.Popen(
                    self._own.joining(*command),
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.DEVNULL,
                    stderr=subprocess.DEVNULL,
                    start_new_session=True,
                )
            )
            place.init = child_of(self._held[-1], place.name)
        self.switch.start()
        self._plug(self.client)

    def _finish_boot(self, host: Host) -> None:
        host.wait_booted()
        self._plug(host)
        names = "".join(f"{other.address} {other.name}\n" for other in self)
        host.write("/etc/hosts", f"127.0.0.1 localhost\n{names}")
        host.write("/etc/resolv.conf", f"nameserver {host.address}\n")
        host.write("/etc/machine-id", f"{int(ipaddress.IPv4Address(host.address)):032x}\n")

    def _plug(self, place: Namespace) -> None:
        self.switch.plug(place, NETWORK.prefixlen)
        place.ip("link set lo up")

    def _remember(self) -> None:
        document = {
            "switch": self.switch.pid,
            "client": self.client.pid,
            "hosts": {host.name: host.address for host in self},
        }
        (self.directory / "hosts.json").write_text(json.dumps(document))

    def _start_reaper(self) -> None:
        """Waits for a word of ours; none comes when we were killed: then it cleans up."""
        program = f'read word || exec {sys.executable} -m tests.cluster.hosts down "$0"'
        self._reaper = subprocess.Popen(
            ["sh", "-c", program, self.prefix],
            cwd=ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )


def each(hosts: Iterable[Host], do: Callable[[Host], T]) -> list[T]:
    """For all hosts at once; their answers in order."""
    listed = list(hosts)
    with ThreadPoolExecutor(max(1, len(listed))) as pool:
        return list(pool.map(do, listed))


def prefixes() -> list[str]:
    """Of all hosts on this machine, whoever made them."""
    return sorted(
        {path.name for path in BASE.glob(f"{PREFIX}*")}
        | {path.name for path in Path("/sys/fs/cgroup").glob(f"*/{PREFIX}*")}
    )
