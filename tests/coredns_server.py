"""Real CoreDNS for tests, with the Corefile of `deploy/coredns`: its addresses replaced, no more.

    with CoreDns.start(etcd.endpoints, forwarder="127.0.0.1:5353") as server:
        dns.query.udp(query, "127.0.0.1", port=server.port)

`make coredns` builds it; here it is only found.
"""

import contextlib
import importlib.util
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import dns.exception
import dns.message
import dns.query

HERE = "127.0.0.1"
DIRECTORY = Path(__file__).resolve().parents[1] / "deploy" / "coredns"
READY_SECONDS = 30.0


def program() -> Path:
    spec = importlib.util.spec_from_file_location("coredns_build", DIRECTORY / "build.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    found: Path = module.program()
    assert found.exists(), "CoreDNS is not built: run `make coredns`"
    return found


@dataclass(frozen=True)
class CoreDns:
    port: int
    pid: int

    @staticmethod
    @contextlib.contextmanager
    def start(
        endpoints: Sequence[str], forwarder: str = "", prefix: Sequence[str] = ()
    ) -> Iterator["CoreDns"]:
        """``prefix``: what runs the command, as taskset. Without forwarder the rest is refused."""
        port = free_port()
        text = (DIRECTORY / "Corefile").read_text()
        text = text.replace(":53 {", f":{port} {{")
        text = text.replace("http://127.0.0.1:2379", " ".join(endpoints))
        if forwarder:
            text = text.replace("/etc/resolv.conf", forwarder)
        else:
            text = text.partition("\n.:")[0]
        with tempfile.TemporaryDirectory(prefix="coredns-test-") as name:
            file = Path(name) / "Corefile"
            file.write_text(text)
            with (Path(name) / "log").open("w+") as log:
                command = [*prefix, str(program()), "-quiet", "-conf", str(file)]
                running = subprocess.Popen(command, stdout=log, stderr=log)
                try:
                    wait_answering(port, running, Path(log.name))
                    yield CoreDns(port=port, pid=running.pid)
                finally:
                    running.send_signal(signal.SIGKILL)  # it would wait for its clients
                    running.wait()


def free_port() -> int:
    """Free for both protocols."""
    while True:
        with socket.socket() as tcp, socket.socket(type=socket.SOCK_DGRAM) as udp:
            tcp.bind((HERE, 0))
            port: int = tcp.getsockname()[1]
            with contextlib.suppress(OSError):
                udp.bind((HERE, port))
                return port


def wait_answering(port: int, running: subprocess.Popen[bytes], log: Path) -> None:
    """Until our zone is answered for, by whatever is in it."""
    query = dns.message.make_query("ready.ozy.internal", "A")
    deadline = time.monotonic() + READY_SECONDS
    while True:
        assert running.poll() is None and time.monotonic() < deadline, log.read_text()
        with contextlib.suppress(OSError, dns.exception.DNSException):
            answer = dns.query.udp(query, HERE, port=port, timeout=0.5)
            if answer.rcode() in (dns.rcode.NOERROR, dns.rcode.NXDOMAIN):
                return
        time.sleep(0.05)
