"""Ports that we listen on or mean to: free, ours, or somebody else's, and then whose."""

import errno
import socket
from collections.abc import Iterator
from pathlib import Path

from ozymandias.cluster import addresses, reach
from ozymandias.cluster.doctor.check import Check, fail, ok, warn

AUTHORITATIVE = 0x04  # in the third byte of a DNS answer (RFC 1035)
DNS_SECONDS_MAX = 1.0


def usual() -> Iterator[Check]:
    """Before there is a cluster: what `ozy up` would like to have."""
    wanted = {addresses.API_PORT: "API", addresses.INGRESS_PORT: "ingress"}
    taken = [
        f"{port} ({what}), by {holder(port)}"
        for port, what in wanted.items()
        if not addresses.is_free(port)
    ]
    if taken:
        yield warn(
            "ports",
            f"taken: {'; '.join(taken)}; `ozy up` will choose others and say which",
            "--api-port and --ingress-port choose them yourself.",
        )
    else:
        yield ok("ports", "7400 (API) and 8080 (ingress) are free")
    # Other clusters of this machine have port 53 of their own networks, which is as it should be.
    if any(map(addresses.dns_is_free, addresses.POOL.subnets(new_prefix=addresses.PREFIX))):
        yield ok("DNS port", "53 can be bound for the pods' network")
    else:
        yield fail(
            "DNS port",
            f"53 is taken on all addresses, by {holder(53, 'udp')}: pods would have no DNS",
            "Let it listen on its own address only (systemd-resolved: DNSStubListenerExtra=,"
            " dnsmasq: bind-interfaces).",
        )


def api(listen: tuple[str, int], *, daemon_runs: bool) -> Iterator[Check]:
    """Taken by somebody else, the daemon can't start at all."""
    host, port = listen
    where = f"{host}:{port}"
    problem = bind_problem(host, port)
    if daemon_runs or problem is None:
        return
    yield fail(
        f"API {where}",
        _why(problem, host, port),
        f"Stop that program, or set [api] listen to another one; `ss -ltnp 'sport = :{port}'`.",
    )


def ingress(listen: tuple[str, int]) -> Check:
    host, port = listen
    name = f"ingress {host}:{port}"
    problem = bind_problem(host, port)
    if problem is None:
        remedy = "`systemctl start ozymandias-ingress`; `journalctl -u ozymandias-ingress`."
        return warn(name, "not running: nobody listens there", remedy)
    try:
        answer = reach.get(f"http://{_reachable(host)}:{port}/.doctor")
        if answer.kind.startswith("application/problem+json") and answer.status in (404, 503):
            return ok(name, "answers")
    except OSError:
        pass
    return fail(
        name,
        _why(problem, host, port),
        f"Stop that program, or set [ingress] listen; `ss -ltnp 'sport = :{port}'`.",
    )


def dns(listen: tuple[str, int], domain: str, log: str) -> Check:
    """`log` says what the responder has to say for itself."""
    host, port = listen
    name = f"DNS {host}:{port}"
    answer = reach.dns_ask(_reachable(host), port, f"doctor.{domain}", DNS_SECONDS_MAX)
    if answer is not None and answer[2] & AUTHORITATIVE:
        return ok(name, f"answers for {domain}")
    if answer is not None:
        return fail(
            name,
            f"another DNS server answers there, which does not know {domain}"
            f" ({holder(port, 'udp')})",
            f"Let it listen elsewhere, or set [dns] listen; `ss -lnup 'sport = :{port}'`.",
        )
    problem = bind_problem(host, port, socket.SOCK_DGRAM)
    if problem is None or problem.errno == errno.EADDRNOTAVAIL:
        return warn(name, "not running: no answer", f"{log} says why.")
    return fail(
        name,
        f"no answer: {_why(problem, host, port, 'udp')}",
        f"If it is ours, {log} says why; else let it listen elsewhere or set [dns] listen.",
    )


def _reachable(host: str) -> str:
    return {"0.0.0.0": "127.0.0.1", "::": "::1", "": "127.0.0.1"}.get(host, host)


def bind_problem(
    host: str, port: int, kind: socket.SocketKind = socket.SOCK_STREAM
) -> OSError | None:
    """What a program that wants that port would be told; nothing is sent."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family, kind) as probe:
        if kind == socket.SOCK_STREAM:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except PermissionError:
            return None  # we may not; those who start it may
        except OSError as error:
            return error
    return None


def _why(problem: OSError, host: str, port: int, protocol: str = "tcp") -> str:
    if problem.errno == errno.EADDRINUSE:
        return f"the port is taken by {holder(port, protocol, host)}"
    if problem.errno == errno.EADDRNOTAVAIL:
        return "this machine does not have that address"
    return str(problem.strerror)


def holder(port: int, protocol: str = "tcp", host: str = "") -> str:
    """The program that has a port, by /proc; a vague word when that can't be seen.

    Given a host, only who listens on that address or on all: others may have the port elsewhere.
    """
    inodes = set()
    places = _places(host)
    for table in (protocol, f"{protocol}6"):
        try:
            lines = Path(f"/proc/net/{table}").read_text().splitlines()[1:]
        except OSError:
            continue
        for fields in map(str.split, lines):
            listens = protocol == "udp" or fields[3] == "0A"
            place, _, number = fields[1].rpartition(":")
            if listens and int(number, 16) == port and (not places or place in places):
                inodes.add(f"socket:[{fields[9]}]")
    for process in Path("/proc").glob("[0-9]*"):
        try:
            if any(str(fd.readlink()) in inodes for fd in (process / "fd").iterdir()):
                return f"{(process / 'comm').read_text().strip()} (pid {process.name})"
        except OSError:
            continue
    return "another program"


def _places(host: str) -> frozenset[str]:
    """How the kernel's tables write an IPv4 address, and all addresses. None: any will do."""
    try:
        own = socket.inet_aton(host)[::-1].hex().upper() if host else ""
    except OSError:
        return frozenset()
    return frozenset({own, "0" * 8, "0" * 32}) if own else frozenset()
