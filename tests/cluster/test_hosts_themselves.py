"""The test hosts: what the other tests on hosts take for granted."""

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cluster.hosts import Host, Hosts
from tests.cluster.hosts.hosts import ROOT, prefixes
from tests.cluster.kit import BUSYBOX, until


@pytest.fixture(scope="module")
def hosts() -> Iterator[Hosts]:
    with Hosts.up(3) as made:
        yield made


def reaches(source: Host, target: Host) -> bool:
    ping = source.run("busybox", "ping", "-c1", "-W1", target.address, check=False)
    return ping.returncode == 0


def test_hosts_are_up_in_seconds_and_leave_nothing() -> None:
    """Up and down again: no process, mount, interface, cgroup or file of theirs is left."""

    def things() -> set[str]:
        mounts = Path("/proc/self/mountinfo").read_text().splitlines()
        return {
            *(line.split()[4] for line in mounts),
            *(str(path) for path in Path("/sys/class/net").iterdir()),
            *(str(path) for path in Path("/dev/shm").glob("ozy-hosts-*")),
            *(str(path) for path in Path("/sys/fs/cgroup").glob("*/ozy-hosts-*")),
        }

    started = time.monotonic()
    with Hosts.up(2) as made:
        seconds = time.monotonic() - started
        prefix, pids = made.prefix, [host.pid for host in made]
        assert any(prefix in thing for thing in things())
        assert all(Path(f"/proc/{pid}").exists() for pid in pids)
    print(f"\nup {seconds:.1f} s, up and down {time.monotonic() - started:.1f} s")
    assert not any(prefix in thing for thing in things())
    assert not any(Path(f"/proc/{pid}").exists() for pid in pids)


@pytest.mark.parametrize("after_seconds", [0.6, 2.5])
def test_a_killed_owner_leaves_nothing(after_seconds: float) -> None:
    """Whoever made hosts is killed with -9, half-way or later: soon nothing of them is there."""
    program = (
        "import secrets, sys, time; secrets.token_hex = lambda n: sys.argv[1]\n"
        "from tests.cluster.hosts import Hosts\n"
        "print('begin', flush=True); Hosts.up(2); time.sleep(60)"
    )
    name = os.urandom(4).hex()
    owner = subprocess.Popen(
        [sys.executable, "-c", program, name], cwd=ROOT, stdout=subprocess.PIPE
    )
    with owner:
        assert owner.stdout is not None and owner.stdout.readline() == b"begin\n"
        time.sleep(after_seconds)  # the moment of the kill is what is tried
        owner.send_signal(signal.SIGKILL)
    until(lambda: f"ozy-hosts-{name}" not in prefixes(), say="all removed")


def test_a_host_is_a_machine_of_its_own(hosts: Hosts) -> None:
    """Own processes, names, disk and podman; what one writes, nobody else sees."""
    n1, n2, _ = hosts
    assert n1.run("hostname").stdout == "n1\n"
    assert "catatonit" in n1.run("cat", "/proc/1/cmdline").stdout
    n1.write("/etc/only-here", "n1")
    assert n1.run("cat", "/etc/only-here").stdout == "n1"
    assert not n2.path("/etc/only-here").exists() and not Path("/etc/only-here").exists()
    n1.podman("create", "--name=lonely", "--network=none", BUSYBOX)
    assert "lonely" in n1.podman("ps", "--all", "--format={{.Names}}")
    assert "lonely" not in n2.podman("ps", "--all", "--format={{.Names}}")


def test_a_power_cut_ends_everything_but_the_disk(hosts: Hosts) -> None:
    """Processes end with their host, /run is empty after the boot, files are as they were."""
    n1, n2, _ = hosts
    sleeper = n1.spawn("sleeper", "sleep", "1000")
    n1.write("/srv/kept", "still here")
    n1.write("/run/lost", "x")
    hosts.crash(n1)
    assert not sleeper.is_running and not reaches(n2, n1)
    hosts.boot(n1)
    assert n1.path("/srv/kept").read_text() == "still here"
    assert not n1.path("/run/lost").exists()
    assert reaches(n2, n1) and reaches(n1, n2)


def test_partitions_and_loss(hosts: Hosts) -> None:
    """Around one, between two, one way, in part; healed means healed."""
    n1, n2, n3 = hosts
    hosts.partition(n1)
    assert not reaches(n1, n2) and not reaches(n3, n1) and reaches(n2, n3)
    hosts.heal(n1)
    hosts.partition(n1, n2)
    assert not reaches(n1, n2) and reaches(n1, n3)
    hosts.heal()
    assert reaches(n1, n2)
    with n2.open_socket(kind=socket.SOCK_DGRAM) as receiver:
        receiver.bind((n2.address, 5000))
        receiver.settimeout(0.3)
        hosts.partition(n2, n1, one_way=True)
        with n1.open_socket(kind=socket.SOCK_DGRAM) as sender:
            sender.sendto(b"heard", (n2.address, 5000))
        assert receiver.recv(10) == b"heard" and not reaches(n1, n2)
        hosts.heal()
        hosts.lose(n1, n2, percent=50)
        with n1.open_socket(kind=socket.SOCK_DGRAM) as sender:
            for _ in range(200):
                sender.sendto(b"some", (n2.address, 5000))
        heard = 0
        try:
            while receiver.recv(10):
                heard += 1
        except TimeoutError:
            pass
    hosts.heal()
    assert 20 < heard < 180 and reaches(n1, n2)


def test_processes_are_paused_stopped_and_killed(hosts: Hosts) -> None:
    """A paused process says nothing until it is resumed; its output is in its log."""
    n1 = hosts["n1"]
    ticker = n1.spawn("ticker", "sh", "-c", "while :; do echo tick; sleep 0.02; done")
    until(lambda: "tick" in ticker.text())
    ticker.pause()
    until(lambda: Path(f"/proc/{ticker.pid}/stat").read_text().split()[2] == "T")
    before = ticker.text()
    assert ticker.is_running and ticker.text() == before
    ticker.resume()
    until(lambda: len(ticker.text()) > len(before))
    assert ticker.stop() != 0 and not ticker.is_running


def test_the_client_speaks_from_beside_the_hosts(hosts: Hosts) -> None:
    """A request from the client reaches a server on a host, and has the client's address."""
    n1 = hosts["n1"]
    n1.write("/srv/index.html", "hello")
    n1.spawn("web", "busybox", "httpd", "-f", "-v", "-p", "8000", "-h", "/srv")

    def page() -> bytes:
        connection = hosts.client.open_http(n1.address, 8000)
        try:
            connection.request("GET", "/")
            return connection.getresponse().read()
        except ConnectionRefusedError:
            return b""
        finally:
            connection.close()

    until(lambda: page() == b"hello")
    assert hosts.client.address in n1.log("web").read_text()


def test_two_sets_of_hosts_at_once(hosts: Hosts) -> None:
    """A second set has the same addresses and is nevertheless alone."""
    with Hosts.up(2, pods=False) as others:
        assert others["n1"].address == hosts["n1"].address
        others["n1"].write("/run/theirs", "x")
        assert not hosts["n1"].path("/run/theirs").exists()
        assert not reaches(others["n1"], hosts["n3"])  # there is no n3 over there
