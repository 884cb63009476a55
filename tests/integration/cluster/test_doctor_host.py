"""`ozy doctor` on faults of a host: each planted for real, found, and told with its remedy."""

import asyncio
import contextlib
import fcntl
import os
import signal
import socket
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from ozymandias.model.node import Ledger, Presence, Resources
from ozymandias.ports import Put
from ozymandias.store import codec, keys
from ozymandias.store.etcd import EtcdStore
from tests.etcd_server import EtcdCluster
from tests.integration.cluster import faults
from tests.integration.cluster.faults import Doctor
from tests.podman_service import PodmanService, running_service


@pytest.fixture
def doctor(tmp_path: Path) -> Doctor:
    return Doctor(folder=tmp_path)


@pytest.fixture(scope="module")
def etcd() -> Iterator[EtcdCluster]:
    with EtcdCluster.start(1) as cluster:
        yield cluster


@pytest.fixture(scope="module")
def podman() -> Iterator[PodmanService]:
    with running_service() as service:
        yield service


def put(etcd: EtcdCluster, **records: bytes) -> None:
    """`nodes__host_1` is the key nodes/host-1; `forget` removes them."""

    async def write() -> None:
        store = EtcdStore.connect(etcd.endpoints)
        try:
            kept = {k.replace("__", "/").replace("_", "-"): v for k, v in records.items()}
            ops = [Put(keys.ROOT + key.encode(), value) for key, value in kept.items()]
            await store.txn([], ops)
        finally:
            await store.aclose()

    asyncio.run(write())


def forget(etcd: EtcdCluster) -> None:
    etcd.ctl("del", "--prefix", keys.ROOT.decode())


def presence(machine_id: str, degraded: str = "") -> bytes:
    return codec.encode(
        Presence(
            address="192.0.2.7",
            machine_id=machine_id,
            session="s",
            daemon_version="0",
            api="http://192.0.2.7:7400",
            degraded=degraded,
        )
    )


QUICK_ELECTIONS = ("--heartbeat-interval=20", "--election-timeout=200")
LEDGER = codec.encode(Ledger(capacity=Resources(memory_bytes=2**30, disk_bytes=2**30)))


# Programs and limits ------------------------------------------------------------------------------


def test_absent_programs(doctor: Doctor) -> None:
    """What is not installed fails with the command that installs it."""
    hidden = {"etcd": None, "podman": None, "nsenter": None}
    doctor.path = faults.path_with(doctor.folder / "bin", dict(hidden))
    found = doctor.run()
    assert found.code == 1
    assert found.of("etcd", "fail")["remedy"] == "apt-get install etcd-server"
    assert found.of("podman", "fail")["remedy"] == "apt-get install podman"
    assert found.of("tools", "fail")["remedy"] == "apt-get install util-linux"


def test_old_programs(doctor: Doctor) -> None:
    """Versions that would not do are told, with those that will."""
    scripts = {"etcd": "echo etcd Version: 3.5.1", "podman": "echo podman version 3.0.1"}
    doctor.path = faults.path_with(doctor.folder / "bin", dict(scripts))
    found = doctor.run()
    assert "3.5.33" in found.of("etcd", "fail")["remedy"]
    assert "3.0.1" in found.of("podman", "fail")["detail"]
    assert "Debian 12" in found.of("podman", "fail")["remedy"]


def test_few_open_files(doctor: Doctor) -> None:
    """A low limit of the shell is told before connections are refused."""
    doctor.before = ("prlimit", "--nofile=300:300", "--")
    assert "ulimit -n" in doctor.run().of("open files", "fail")["remedy"]


PLANT = """
import socket, subprocess, sys
subprocess.run(["ip", "link", "set", "lo", "up"], check=True)
held = []
for kind, port in ((socket.SOCK_DGRAM, 53), (socket.SOCK_STREAM, 53), (1, 7400), (1, 8080)):
    sock = socket.socket(socket.AF_INET, kind)
    sock.bind(("0.0.0.0", port))
    held.append(sock)
    if kind == socket.SOCK_STREAM:
        sock.listen()
sys.exit(subprocess.call(sys.argv[1:]))
"""


def test_usual_ports_taken(doctor: Doctor) -> None:
    """Before a cluster is made: who has the ports it would like, and that pods need DNS."""
    doctor.before = ("unshare", "--net", sys.executable, "-c", PLANT)
    found = doctor.run()
    ports = found.of("ports", "warn")
    assert "7400 (API), by python" in ports["detail"]
    assert "8080 (ingress), by python" in ports["detail"]
    assert "--ingress-port" in ports["remedy"]
    assert "own address only" in found.of("DNS port", "fail")["remedy"]


# The state directory ------------------------------------------------------------------------------


def test_a_full_disk(doctor: Doctor) -> None:
    """Room and inodes of the very file system that holds the state."""
    with faults.mounted_tmpfs(doctor.folder / "state", "size=8m,nr_inodes=500") as state:
        (state / "filler").write_bytes(bytes(7 * 2**20))
        file = doctor.settings(node={"state_dir": str(state), "name": "host-1"})
        found = doctor.run("--config", str(file))
    assert "podman image prune" in found.of("disk", "fail")["remedy"]
    assert "du --inodes" in found.of("inodes", "fail")["remedy"]


def test_a_clock_that_went_back(doctor: Doctor) -> None:
    """Files from the future betray it."""
    (doctor.folder / "cluster-id").write_text("c\n")
    later = time.time() + 3 * 3600
    os.utime(doctor.folder / "cluster-id", (later, later))
    check = doctor.run("--config", str(doctor.settings())).of("clock", "warn")
    assert "3 hours from now" in check["detail"]
    assert "chrony" in check["remedy"]


# Settings -----------------------------------------------------------------------------------------


def test_settings_that_can_not_be_read(doctor: Doctor) -> None:
    """A misspelt setting is named; so is a file that is not there."""
    file = doctor.settings(node={"memroy": "2G"})
    check = doctor.run("--config", str(file)).of("settings", "fail")
    assert "memroy" in check["detail"]
    assert "memory" in check["remedy"]
    assert doctor.run("--config", str(doctor.folder / "no.toml")).of("settings", "fail")["remedy"]


@pytest.mark.parametrize(
    ("text", "mode", "verdict", "remedy"),
    [
        (None, 0, "fail", "openssl rand"),
        ("short", 0o600, "fail", "openssl rand"),
        ("long-enough-for-anybody", 0o644, "warn", "chmod 600"),
    ],
)
def test_a_bad_token_file(
    doctor: Doctor, text: str | None, mode: int, verdict: str, remedy: str
) -> None:
    """Absent, guessable or open to everybody: each with its way out."""
    token = doctor.folder / "other-token"
    if text is not None:
        token.write_text(text)
        token.chmod(mode)
    file = doctor.settings(api={"token_file": str(token), "listen": "127.0.0.1:1"})
    assert remedy in doctor.run("--config", str(file)).of("token", verdict)["remedy"]


# The store ----------------------------------------------------------------------------------------


def test_an_unreachable_store(doctor: Doctor) -> None:
    """Nobody at the endpoints: what to start, and where to look."""
    found = doctor.run("--config", str(doctor.settings()))
    assert found.code == 1
    assert "systemctl start etcd" in found.of("etcd", "fail")["remedy"]


def test_an_old_store(doctor: Doctor, etcd: EtcdCluster) -> None:
    """The running server's version counts, not that of a binary on this machine."""
    file = doctor.settings(etcd={"endpoints": list(etcd.endpoints)})
    check = doctor.run("--config", str(file)).of(f"etcd {etcd.endpoints[0]}", "warn")
    assert "3.4." in check["detail"]
    assert "3.5.33" in check["remedy"]


def test_a_full_store(doctor: Doctor) -> None:
    """The NOSPACE alarm of a real etcd whose quota is used up."""
    quota = 2 * 2**20
    with EtcdCluster.start(1, options=[f"--quota-backend-bytes={quota}"]) as full:
        with pytest.raises(RuntimeError, match="database space exceeded"):
            for number in range(30):
                full.ctl("put", f"k{number}", "x" * 120_000)
        file = doctor.settings(etcd={"endpoints": list(full.endpoints)})
        check = doctor.run("--config", str(file)).of("etcd", "fail")
    assert "NOSPACE" in check["detail"]
    assert "alarm disarm" in check["remedy"]


def test_a_store_without_quorum(doctor: Doctor) -> None:
    """One of three answers and knows no leader."""

    async def until_leaderless(endpoint: str) -> None:
        store = EtcdStore.connect([endpoint])
        async with asyncio.timeout(20), contextlib.aclosing(store):
            while (await store.status())[0].leader_id:
                await asyncio.sleep(0.05)

    with EtcdCluster.start(3, options=QUICK_ELECTIONS) as three:
        three.kill(0)
        three.kill(1)
        asyncio.run(until_leaderless(three.endpoints[2]))
        file = doctor.settings(etcd={"endpoints": list(three.endpoints)})
        found = doctor.run("--config", str(file))
    assert "a majority must run" in found.of("etcd quorum", "fail")["remedy"]
    assert found.of(f"etcd {three.endpoints[0]}", "warn")["remedy"]


def test_names_and_leases(doctor: Doctor, etcd: EtcdCluster) -> None:
    """Lost and degraded nodes, and a record of ours whose daemon is gone."""
    put(
        etcd,
        ledger__host_1=LEDGER,
        nodes__host_1=presence("machine-1"),
        ledger__host_2=LEDGER,
        ledger__host_3=LEDGER,
        nodes__host_3=presence("machine-3", "podman does not answer"),
    )
    file = doctor.settings(etcd={"endpoints": list(etcd.endpoints)})
    try:
        found = doctor.run("--config", str(file))
    finally:
        forget(etcd)
    assert "systemctl start ozymandias" in found.of("lease", "warn")["remedy"]
    assert "lease has run out" in found.of("node host-2", "warn")["detail"]
    assert "podman does not answer" in found.of("node host-3", "warn")["detail"]
    assert found.of("node host-3", "warn")["remedy"]
    assert "journalctl" in found.of("daemon", "fail")["remedy"]


def test_a_name_that_is_taken(doctor: Doctor, etcd: EtcdCluster) -> None:
    """Another machine is alive under this node's name, and the store is another cluster's."""
    put(
        etcd,
        format=codec.encode(codec.Format(version=1, cluster="theirs")),
        ledger__host_1=LEDGER,
        nodes__host_1=presence("machine-of-somebody-else"),
    )
    (doctor.folder / "cluster-id").write_text("ours\n")
    file = doctor.settings(etcd={"endpoints": list(etcd.endpoints)})
    try:
        found = doctor.run("--config", str(file))
    finally:
        forget(etcd)
    check = found.of("node name", "fail")
    assert "192.0.2.7" in check["detail"]
    assert "another name" in check["remedy"]
    assert "theirs" in found.of("cluster", "fail")["detail"]


# podman, daemon, ports ----------------------------------------------------------------------------


def test_no_podman_service(doctor: Doctor) -> None:
    """Nobody at its socket."""
    check = doctor.run("--config", str(doctor.settings())).of("podman service", "fail")
    assert "systemctl start podman.socket" in check["remedy"]


def test_a_wedged_podman(doctor: Doctor, podman: PodmanService) -> None:
    """It takes the connection and never answers; the doctor does not hang with it."""
    file = doctor.settings(podman={"socket": str(podman.socket)})
    podman.signal(signal.SIGSTOP)
    try:
        found = doctor.run("--config", str(file))
    finally:
        podman.signal(signal.SIGCONT)
    check = found.of("podman service", "fail")
    assert "it hangs" in check["detail"]
    assert "systemctl restart podman.service" in check["remedy"]


def test_a_network_that_is_not_there(doctor: Doctor, podman: PodmanService) -> None:
    """podman answers, and has no network of that name."""
    file = doctor.settings(podman={"socket": str(podman.socket), "network": "ozy-never-made"})
    check = doctor.run("--config", str(file)).of("pod network", "fail")
    assert "ozy-never-made" in check["detail"]
    assert "restart it" in check["remedy"]


def test_ports_in_other_hands(doctor: Doctor) -> None:
    """API, ingress and DNS, each held by a stranger, who is named."""
    with (
        faults.listening() as api,
        faults.http_server() as ingress,
        faults.strange_dns() as dns,
    ):
        file = doctor.settings(
            api={"listen": f"127.0.0.1:{api}"},
            ingress={"listen": ingress.removeprefix("http://")},
            dns={"listen": f"127.0.0.1:{dns}"},
        )
        found = doctor.run("--config", str(file))
    mine = f"(pid {os.getpid()})"
    assert mine in found.of("API", "fail")["detail"]
    assert "[api] listen" in found.of("API", "fail")["remedy"]
    assert mine in found.of("ingress", "fail")["detail"]
    assert "[ingress] listen" in found.of("ingress", "fail")["remedy"]
    assert "another DNS server" in found.of("DNS", "fail")["detail"]
    assert "[dns] listen" in found.of("DNS", "fail")["remedy"]


def test_a_mute_dns_port(doctor: Doctor) -> None:
    """Taken by a program that never answers."""
    with faults.listening(socket.SOCK_DGRAM) as port:
        file = doctor.settings(dns={"listen": f"127.0.0.1:{port}"})
        check = doctor.run("--config", str(file)).of("DNS", "fail")
    assert "no answer" in check["detail"]


def test_a_daemon_that_hangs(doctor: Doctor) -> None:
    """Its lock is held, and nobody answers at its socket."""
    with (doctor.folder / "daemon.lock").open("a") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        check = doctor.run("--config", str(doctor.settings())).of("daemon", "fail")
    assert "does not answer" in check["detail"]
    assert "journalctl -u ozymandias" in check["remedy"]


# A cluster elsewhere ------------------------------------------------------------------------------


def test_nobody_at_an_endpoint(doctor: Doctor) -> None:
    """A context that leads nowhere; nothing is said of this machine, which need not have podman."""
    doctor.context(endpoints=[f"http://127.0.0.1:{faults.free_port()}"])
    found = doctor.run()
    assert found.code == 1
    assert "ozy context" in found.of("API", "fail")["remedy"]
    assert not any(check["name"] == "podman" for check in found.checks)


def test_a_stranger_at_an_endpoint(doctor: Doctor) -> None:
    """Something answers there which is no Ozymandias."""
    with faults.http_server(body=b"<html>") as other:
        doctor.context(endpoints=[other])
        check = doctor.run().of("API", "fail")
    assert "not an Ozymandias API" in check["detail"]
    assert "ozy context" in check["remedy"]


@pytest.mark.parametrize(("ahead", "verdict"), [(60.0, "warn"), (-3600.0, "fail")])
def test_clocks_apart(doctor: Doctor, ahead: float, verdict: str) -> None:
    """A peer whose clock is far from ours."""
    with faults.http_server(ahead) as peer:
        doctor.context(endpoints=[peer])
        check = doctor.run().of("clock of", verdict)
    assert ("ahead" if ahead > 0 else "behind") in check["detail"]
    assert "timedatectl" in check["remedy"]
