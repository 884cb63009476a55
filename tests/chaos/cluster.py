"""A cluster of test hosts as administrators leave it: whatever ends is started again.

Beside the programs of `HostCluster` each host has a small disk of its own below
`/var/lib/ozymandias`, which can be filled without filling the machine's. A keeper does what systemd
would do: a program that has ended is started again after a moment, unless a fault holds it down.
"""

import base64
import json
import subprocess
import threading
import time
from contextlib import suppress
from typing import Any

from ozymandias.cluster.programs import Setting
from ozymandias.ports import KV
from tests.cluster.hosts import programs
from tests.cluster.hosts.cluster import SUBNET_FILE, HostCluster
from tests.cluster.hosts.host import Host
from tests.cluster.hosts.hosts import Hosts
from tests.cluster.hosts.process import Process

DISK_MEGABYTES = 96
DISK = "/var/lib/ozymandias"
LEASE_SECONDS = 6
KEEPER_SECONDS = 0.5
FLANNEL_SECONDS_MAX = 15.0  # to write the subnet: TimeoutStartSec of its unit


class ChaosCluster(HostCluster):
    def __init__(self, hosts: Hosts) -> None:
        settings: dict[str, dict[str, Setting]] = {
            "node": {"lease_ttl_seconds": LEASE_SECONDS, "memory": "1G", "disk": "256M"},
            "names": {"ingress_domain": "localhost"},  # as the simulator's checks of rest have it
        }
        super().__init__(hosts, settings)
        self.lock = threading.RLock()  # of everything that starts or ends programs and hosts
        self.held: set[tuple[str, str]] = set()  # host, program: a fault keeps it down
        self.compacted: set[int] = set()  # revisions: etcd tells no deletion of these any more
        self.off: set[str] = set()  # hosts that a fault keeps without power
        self._stop = threading.Event()
        self._keeper = threading.Thread(target=self._keep, daemon=True)

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(host.name for host in self.hosts)

    def start_keeper(self) -> None:
        self._keeper.start()

    def stop_keeper(self) -> None:
        self._stop.set()
        self._keeper.join(timeout=60)

    def start(self, host: str, *names: str) -> None:
        if not names or "podman" in names:
            self._mount_disk(host)
        super().start(host, *names)

    def start_missing(self, host: str) -> None:
        """All programs that do not run there, in order."""
        for name in programs.NAMES:
            if not self.is_running(host, name):
                self.start(host, name)

    def is_running(self, host: str, name: str) -> bool:
        process = self.hosts[host].processes.get(name)
        return process is not None and process.is_running

    def _mount_disk(self, name: str) -> None:
        """Fine if it is mounted; made at the host's first start, and kept over power cuts."""
        host = self.hosts[name]
        image = host.directory / "disk" / "state.img"
        if not image.exists():
            with image.open("wb") as file:
                file.truncate(DISK_MEGABYTES * 2**20)
            subprocess.run(["mkfs.ext4", "-q", "-m", "0", str(image)], check=True)
        host.path(DISK).mkdir(parents=True, exist_ok=True)
        # The image lies outside of what the host can see: it is handed in as an open file.
        with image.open("rb+") as file:
            script = f"mountpoint -q {DISK} || mount -o loop /proc/self/fd/{file.fileno()} {DISK}"
            done = subprocess.run(
                host.cgroups.joining(*host.entering(), "sh", "-c", script),
                check=False,
                pass_fds=(file.fileno(),),
                capture_output=True,
                text=True,
            )
        assert done.returncode == 0, f"no disk on {name}: {done.stderr}"

    def _keep(self) -> None:
        seen: dict[tuple[str, str], float] = {}
        began: dict[Process, float] = {}  # flannelds that have not told a subnet yet
        while not self._stop.wait(KEEPER_SECONDS):
            for host in self.hosts:
                with self.lock:
                    self._end_slow_flanneld(host, began)
                for name in programs.NAMES:
                    if name == "etcd" and host not in self.members:
                        continue
                    with self.lock:
                        if not self._is_down(host.name, name):
                            seen.pop((host.name, name), None)
                        elif (since := seen.setdefault((host.name, name), time.monotonic())) and (
                            time.monotonic() - since > KEEPER_SECONDS
                        ):
                            self._start_again(host.name, name)
                            seen.pop((host.name, name), None)

    def _end_slow_flanneld(self, host: Host, began: dict[Process, float]) -> None:
        """One that does not get ready in time is ended, as its unit asks of systemd."""
        flanneld = host.processes.get("flanneld")
        if flanneld is None or not flanneld.is_running or not host.has_power:
            return
        since = began.setdefault(flanneld, time.monotonic())
        if host.path(SUBNET_FILE).exists():
            began[flanneld] = float("inf")
        elif time.monotonic() - since > FLANNEL_SECONDS_MAX:
            flanneld.kill()

    def _is_down(self, host: str, name: str) -> bool:
        if host in self.off or (host, name) in self.held or not self.hosts[host].has_power:
            return False
        return name in self.hosts[host].processes and not self.is_running(host, name)

    def _start_again(self, host: str, name: str) -> None:
        with suppress(AssertionError):  # it ended at once: the next round tries again
            super().start(host, name)

    # The raw store, from a client beside the hosts ------------------------------------------------

    def etcdctl(self, *arguments: str) -> list[str]:
        endpoints = ",".join(f"http://{member.address}:2379" for member in self.members)
        patience = ("--dial-timeout=3s", "--keepalive-time=2s", "--keepalive-timeout=3s")
        command = ("env", "ETCDCTL_API=3", "etcdctl", f"--endpoints={endpoints}", *patience)
        return self.hosts.client.cgroups.joining(
            *self.hosts.client.entering(), *command, *arguments
        )

    def etcd(self, *arguments: str, seconds: float = 20.0) -> str:
        """What etcdctl printed; a failure is an AssertionError."""
        try:
            done = subprocess.run(
                self.etcdctl(*arguments),
                capture_output=True,
                text=True,
                timeout=seconds,
                check=False,
            )
        except subprocess.TimeoutExpired as error:
            raise AssertionError(f"etcdctl {arguments[0]} does not answer") from error
        assert done.returncode == 0, f"etcdctl {' '.join(arguments)}: {done.stderr}"
        return done.stdout

    def listing(self, prefix: str = "/") -> tuple[int, list[KV]]:
        """All keys at one revision, by a read that a quorum confirms."""
        document = json.loads(self.etcd("get", "--prefix", prefix, "-w", "json"))
        return int(document["header"]["revision"]), [kv_of(kv) for kv in document.get("kvs", ())]


def kv_of(document: dict[str, Any]) -> KV:
    """A key as etcdctl prints it."""
    return KV(
        key=base64.b64decode(document["key"]),
        value=base64.b64decode(document.get("value", "")),
        create_revision=int(document.get("create_revision", 0)),
        mod_revision=int(document.get("mod_revision", 0)),
        version=int(document.get("version", 0)),
        lease=int(document.get("lease", 0)),
    )
