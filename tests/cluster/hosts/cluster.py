"""A whole cluster on test hosts: etcd on up to three of them, everything else on each.

    with running(3) as cluster:
        cluster.submit(web("web", instances=3))
        cluster.fetch("web.default.test", at=cluster["n2"])
        cluster.kill("n1", "daemon"); cluster.start("n1", "daemon")
        cluster.crash("n2"); cluster.boot("n2")

The programs are started directly and nobody restarts them: what is killed stays away until a test
starts it again, so that a test can look at the time between. The API is asked over each host's own
socket, which also works on a host that is cut off.
"""

import http.client
import json
import os
import shutil
import socket
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Self

import dns.message
import dns.query
import dns.rdatatype

from ozymandias.cluster.programs import Setting
from tests.cluster.hosts import programs
from tests.cluster.hosts.host import Host
from tests.cluster.hosts.hosts import Hosts, each
from tests.cluster.kit import Answer, Cluster, until

SOCKET = "/var/lib/ozymandias/api.sock"
SUBNET_FILE = "/run/flannel/subnet.env"
MEMBERS_MAX = 3
ETCDCTL = ("etcdctl", "--endpoints=http://127.0.0.1:2379")  # a host's own member
UP_SECONDS_MAX = 60.0
More = Mapping[str, dict[str, Setting]]


class UnixConnection(http.client.HTTPConnection):
    def __init__(self, path: Path, timeout: float) -> None:
        super().__init__("localhost", timeout=timeout)
        self._path = path

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.settimeout(self.timeout)
        self.sock.connect(str(self._path))


class HostCluster(Cluster):
    """The person, the client of the API and the truth of `kit.Cluster`, on several hosts."""

    def __init__(
        self, hosts: Hosts, more: More | None = None, without: tuple[str, ...] = ()
    ) -> None:
        super().__init__(directory=hosts.directory)
        self.hosts = hosts
        self.members = tuple(hosts)[:MEMBERS_MAX]
        self._more = dict(more or {})
        self._names = tuple(name for name in programs.NAMES if name not in without)

    def __getitem__(self, name: str) -> Host:
        return self.hosts[name]

    # Programs -------------------------------------------------------------------------------------

    def bring_up(self) -> Self:
        """All programs on all hosts, until every node takes work."""
        each(self.hosts, self._write_files)
        for name in self._names:
            if name != "flanneld":
                self.start_each(name)
        put = ("etcdctl", "put", programs.FLANNEL_KEY, programs.flannel_network())
        until(lambda: self.members[0].run(*put, check=False).returncode == 0, say="etcd answers")
        self.start_each("flanneld")
        until(self._has_subnets, seconds=UP_SECONDS_MAX, say="every host has a subnet")
        self.wait_ready(*(host.name for host in self.hosts))
        return self

    def _has_subnets(self) -> bool:
        """A flanneld whose subnet another one took at that moment ends, and is started again."""
        for host in self.hosts:
            if not host.processes["flanneld"].is_running:
                self.start(host.name, "flanneld")
        return all(host.path(SUBNET_FILE).exists() for host in self.hosts)

    def _write_files(self, host: Host) -> None:
        programs.write_files(host, self.members, self._more)

    def start_each(self, name: str, *hosts: str) -> None:
        for host in [self.hosts[n] for n in hosts] or list(self.hosts):
            if name != "etcd" or host in self.members:
                self.start(host.name, name)

    def start(self, host: str, *names: str) -> None:
        """Those programs of a host, or all of them."""
        for name in names or self._names:
            place = self.hosts[host]
            if name != "etcd" or place in self.members:
                place.spawn(name, *programs.command(name, place, self.members))

    def stop_program(self, host: str, name: str) -> int:
        return self.hosts[host].processes[name].stop()

    def kill_program(self, host: str, name: str) -> None:
        self.hosts[host].processes[name].kill()

    def crash(self, *names: str) -> None:
        """A power cut of those hosts at one moment."""
        self.hosts.crash(*(self.hosts[name] for name in names))

    def boot(self, *names: str) -> None:
        """Power on; all programs start at once, as they do on a host."""
        self.hosts.boot(*(self.hosts[name] for name in names))
        for name in names:
            self.start(name)

    def wait_ready(self, *names: str, seconds: float = UP_SECONDS_MAX) -> float:
        """Until those nodes are members that take work, by the word of each of them."""

        def missing() -> list[str]:
            found = []
            for name in names:
                try:
                    rows = self.nodes(node=name)
                except (OSError, AssertionError, http.client.HTTPException) as error:
                    found.append(f"{name}: {error!r}"[:300])
                    continue
                states = {other: rows.get(other, {}).get("state") for other in names}
                found += [f"{name}: {o} is {s}" for o, s in states.items() if s != "ready"]
            return found

        started = time.monotonic()
        while left := missing():
            assert time.monotonic() - started < seconds, left
            time.sleep(0.1)
        return time.monotonic() - started

    def leader(self) -> str:
        """The host whose etcd leads."""
        for member in self.members:
            status = _etcd_status(member) if member.has_power else {}
            if status and status.get("leader") == status["header"]["member_id"]:
                return member.name
        raise AssertionError("no member leads")

    def make_leader(self, name: str) -> None:
        """Have the etcd of that host lead."""
        leader = self.leader()
        if leader != name:
            number = _etcd_status(self[name])["header"]["member_id"]
            self[leader].run(*ETCDCTL, "move-leader", f"{number:x}")
        until(lambda: self.leader() == name, say=f"{name} leads")

    # As a client ----------------------------------------------------------------------------------

    def request(
        self, method: str, path: str, body: Any = None, *, node: str = "", timeout: float = 20.0
    ) -> Answer:
        """Asked of that node, or of the first that has power."""
        host = self.hosts[node] if node and self.hosts[node].has_power else self._first()
        connection = UnixConnection(host.path(SOCKET), timeout)
        content = body if isinstance(body, bytes | None) else json.dumps(body).encode()
        try:
            connection.request(method, path, content)
            return _answer(connection.getresponse())
        finally:
            connection.close()

    def _first(self) -> Host:
        return next(host for host in self.hosts if host.has_power)

    def fetch(self, host: str, path: str = "/", *, timeout: float = 10.0, at: str = "n1") -> Answer:
        """One request of a client beside the hosts to the ingress of one of them."""
        address = self.hosts[at].address
        connection = self.hosts.client.open_http(address, programs.INGRESS_PORT, timeout=timeout)
        try:
            connection.request("GET", path, headers={"Host": host})
            return _answer(connection.getresponse())
        finally:
            connection.close()

    def resolve(self, name: str, kind: str = "A", *, at: str = "n1") -> list[str]:
        """What CoreDNS of a host answers there; empty when there is no such name."""
        host = self.hosts[at]
        question = dns.message.make_query(name, kind)
        with host.open_socket(socket.SOCK_DGRAM) as sock:
            answer = dns.query.udp(question, host.address, timeout=6, sock=sock)
        assert answer.rcode() in (dns.rcode.NOERROR, dns.rcode.NXDOMAIN), answer
        wanted = dns.rdatatype.from_text(kind)
        return sorted(r.to_text() for rrset in answer.answer for r in rrset if r.rdtype == wanted)

    # The truth ------------------------------------------------------------------------------------

    def pods(self, *names: str) -> dict[str, dict[str, str]]:
        """By host: name of each container that runs -> its id and when it was started."""
        chosen = [self.hosts[name] for name in names] or [h for h in self.hosts if h.has_power]
        return dict(zip([h.name for h in chosen], each(chosen, _running), strict=True))

    def containers(self) -> dict[str, str]:
        return {n: when for found in self.pods().values() for n, when in found.items()}

    def placed(self, job: str) -> dict[str, str]:
        """Instance -> node, by the schedule."""
        return {row["instance"]: row["node"] for row in self.rows(job)}

    def addresses(self, job: str) -> dict[str, str]:
        return {row["instance"]: row["address"] for row in self.rows(job)}

    def tracebacks(self) -> str:
        found = []
        for host in self.hosts:
            for name in ("daemon", "guard", "ingress"):
                log = host.log(name)
                text = log.read_text(errors="replace") if log.exists() else ""
                if "Traceback" in text:
                    begin = max(0, text.find("Traceback") - 500)
                    found.append(f"{host.name} {name}: {text[begin:][:6000]}")
        return "\n".join(found)

    def last_words(self, lines: int = 12) -> str:
        """The ends of all logs, for whoever has to find out why a test failed."""
        logs = [log for host in self.hosts for log in sorted(host.directory.glob("log/*.log"))]
        tails = (
            (f"{log.parts[-3]} {log.name}", log.read_text(errors="replace").splitlines()[-lines:])
            for log in logs
        )
        return "\n".join("\n".join([f"== {title}", *tail]) for title, tail in tails)


def _etcd_status(host: Host) -> dict[str, Any]:
    """By the word of its member; empty when that says nothing."""
    done = host.run(*ETCDCTL, "endpoint", "status", "-w", "json", check=False, seconds=10)
    found: dict[str, Any] = json.loads(done.stdout)[0]["Status"] if done.returncode == 0 else {}
    return found


def _running(host: Host) -> dict[str, str]:
    form = "{{.Names}}={{.ID}} {{.StartedAt}}"
    lines = host.podman("ps", "--no-trunc", f"--format={form}").splitlines()
    found = dict(line.split("=", 1) for line in lines)
    return {name: when for name, when in found.items() if not name.endswith("._infra")}


def _answer(response: http.client.HTTPResponse) -> Answer:
    named = {name.lower(): value for name, value in response.getheaders()}
    return Answer(status=response.status, headers=named, body=response.read())


@contextmanager
def running(
    count: int = 3, more: More | None = None, *, without: tuple[str, ...] = ()
) -> Iterator[HostCluster]:
    """A cluster that takes work, removed in the end whatever happens; a bug in it is told.

    Programs that it is ``without`` are not started: a test runs them in another way.
    """
    with Hosts.up(count) as hosts:
        cluster = HostCluster(hosts, more, without)
        try:
            yield cluster.bring_up()
        except BaseException:
            print(cluster.last_words())
            raise
        finally:
            if keep := os.environ.get("OZY_KEEP_LOGS"):
                for host in hosts:
                    target = Path(keep) / host.name
                    shutil.copytree(host.directory / "log", target, dirs_exist_ok=True)
        bugs = cluster.tracebacks()
    assert not bugs, bugs
