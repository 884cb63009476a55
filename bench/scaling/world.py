"""One etcd and the processes around it, gone when the bench is done with them.

etcd is started as ours are (`--max-txn-ops 8192`), with its data in memory where there is
/dev/shm, and room for a million assignments and their statuses.
"""

import contextlib
import socket
from collections.abc import Iterator
from dataclasses import dataclass, field

import psutil

from bench.scaling.children import Child
from tests.etcd_server import EtcdCluster

OPTIONS = ("--max-txn-ops=8192", "--quota-backend-bytes=12000000000")


@dataclass(slots=True)
class World:
    etcd: EtcdCluster
    stack: contextlib.ExitStack
    peers: list[Child] = field(default_factory=list)
    ports: list[int] = field(default_factory=list)
    nodes: int = 0
    _simulated: Child | None = None

    @property
    def endpoints(self) -> str:
        return ",".join(self.etcd.endpoints)

    @property
    def simulated(self) -> Child:
        """The process of the simulated nodes."""
        if self._simulated is None:
            child = Child("bench.scaling.nodes", self.endpoints)
            self._simulated = self.stack.enter_context(child)
        return self._simulated

    def child(self, module: str, *arguments: str) -> Child:
        return self.stack.enter_context(Child(module, *arguments))

    def add_peers(self, count: int) -> None:
        """Daemons that are members before this returns, and see everybody."""
        fresh = []
        for _ in range(count):
            number, port = len(self.peers), _free_port()
            child = self.child("bench.scaling.peer", f"peer{number}", str(port), self.endpoints)
            self.peers.append(child)
            self.ports.append(port)
            fresh.append(child)
        for peer in fresh:
            peer.ask("join")
        self.see_all()

    def add_nodes(self, count: int, *, has_room: bool = True) -> None:
        self.simulated.ask("register", first=self.nodes, nodes=count, has_room=has_room)
        self.nodes += count
        self.see_all()

    def see_all(self) -> None:
        for peer in self.peers:
            peer.ask("see", alive=self.nodes + len(self.peers))

    def etcd_cpu_seconds(self) -> float:
        return sum(sum(psutil.Process(pid).cpu_times()[:2]) for pid in self.etcd.pids)


@contextlib.contextmanager
def world(*, peers: int = 0, nodes: int = 0) -> Iterator[World]:
    """Daemons join before the nodes: they know of every node that it has lived."""
    with EtcdCluster.start(1, options=OPTIONS) as etcd, contextlib.ExitStack() as stack:
        made = World(etcd, stack)
        if peers:
            made.add_peers(peers)
        if nodes:
            made.add_nodes(nodes)
        yield made


def _free_port() -> int:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        port: int = sock.getsockname()[1]
        return port
