"""One host: namespaces of every kind, a disk of its own, a cable to the switch.

The disk is the machine's own file system with a layer on top, so everything installed is there and
nothing written is seen by anybody else. It is kept over a power cut; /run and /dev/shm are not.
PID 1 is catatonit. Killing it is the power cut: the kernel ends every process of the host and,
with them, its mounts and interfaces.
"""

import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

from ozymandias.cluster.state import ProcessId
from tests.cluster.hosts.cgroups import Cgroups
from tests.cluster.hosts.namespace import Namespace
from tests.cluster.hosts.process import Process, child_of

BOOT_SECONDS_MAX = 30.0
POLICY = '{"default": [{"type": "insecureAcceptAnything"}]}\n'
# Run as PID 1 in fresh namespaces, on the machine's own root. Nothing of it stays mounted there.
INIT = """\
set -e
mount --make-rprivate /
mount -t overlay overlay -o lowerdir=/,upperdir={disk}/upper,workdir={disk}/work {disk}/root
cd {disk}/root
mount -t proc proc proc
mount -t sysfs sysfs sys
mount -t tmpfs -o mode=755 tmpfs sys/fs/cgroup
{cgroups}
mount --bind /dev dev
mount --bind /dev/pts dev/pts
mount -t tmpfs -o mode=1777 tmpfs dev/shm
mount -t tmpfs -o mode=755 tmpfs run
mkdir -p run/lock run/podman var/lib/containers
mount --bind {disk}/containers var/lib/containers
mount --bind {disk}/etc-containers etc/containers
pivot_root . mnt
umount -l /mnt
hostname {name}
ip link set lo up
echo 1 >/proc/sys/net/ipv4/ip_forward
# Or a connection that lived through a partition stays silent for as long again after it.
echo 1000 >/proc/sys/net/ipv4/tcp_rto_max_ms 2>/dev/null || true
echo ready >/run/ready
exec catatonit -P
"""


class Host(Namespace):
    """Made by `Hosts`; has power between `boot` and `crash`."""

    def __init__(
        self, name: str, address: str, cgroups: Cgroups, directory: Path, *, memory_bytes: int = 0
    ) -> None:
        super().__init__(name, address, cgroups)
        self.directory = directory
        self._memory_bytes = memory_bytes
        self._entry: subprocess.Popen[bytes] | None = None
        self.processes: dict[str, Process] = {}

    # Power ----------------------------------------------------------------------------------------

    def format(self, images: Path | None) -> None:
        """An empty disk, with images if there are any to be."""
        disk = self._disk
        for name in ("upper", "work", "root", "containers", "etc-containers/networks"):
            (disk / name).mkdir(parents=True)
        (self.directory / "log").mkdir()
        (disk / "etc-containers" / "policy.json").write_text(POLICY)
        if images is not None:
            copy = ["cp", "-a", str(images), str(disk / "containers" / "storage")]
            subprocess.run(copy, check=True)

    @property
    def has_power(self) -> bool:
        return self.init is not None and self.init.is_alive

    def power_on(self) -> None:
        """Namespaces and PID 1; `Hosts` plugs in the cable."""
        assert not self.has_power, f"{self.name} has power already"
        self.cgroups.make(self._memory_bytes)
        cgroups = "\n".join(
            f"mkdir sys/fs/cgroup/{name}; mount {how} sys/fs/cgroup/{name}"
            for name, how in self.cgroups.mounts()
        )
        script = INIT.format(name=self.name, disk=self._disk, cgroups=cgroups)
        with (self.directory / "log" / "init.log").open("ab") as log:
            self._entry = subprocess.Popen(
                self.cgroups.joining(
                    *("unshare", "--net", "--mount", "--uts", "--ipc", "--pid", "--cgroup"),
                    *("--fork", "--kill-child=KILL", "sh", "-c", script),
                ),
                env=self.environment(),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        self.init = child_of(self._entry, f"init of {self.name}")
        (self.directory / "init").write_text(str(self.init.pid))

    def wait_booted(self) -> None:
        deadline = time.monotonic() + BOOT_SECONDS_MAX
        while not self.path("/run/ready").exists():
            log = self.directory / "log" / "init.log"
            assert self.has_power, f"{self.name} did not boot: {log.read_text()}"
            assert time.monotonic() < deadline, f"{self.name} does not boot: {log.read_text()}"
            time.sleep(0.005)

    def crash(self) -> None:
        """A power cut. The disk keeps what was written; fine if there is no power."""
        if self.init is not None:
            self.init.kill(signal.SIGKILL)
        for process in self.processes.values():  # the host ends when all of them are reaped
            process.wake_entry()
        if self._entry is not None:
            self._entry.wait(BOOT_SECONDS_MAX)
        for process in self.processes.values():
            process.wait()
        self.processes.clear()
        self.init = self._entry = None
        self.cgroups.kill()
        self.cgroups.remove()

    @property
    def _disk(self) -> Path:
        return self.directory / "disk"

    def adopt(self) -> None:
        """Find PID 1 that another process of ours started; for the command line."""
        self.init = ProcessId.of(int((self.directory / "init").read_text()))

    # Files ----------------------------------------------------------------------------------------

    def path(self, path: str) -> Path:
        """A file of the host, as the test can open it, sockets too. Needs power."""
        return Path(f"/proc/{self.pid}/root") / path.lstrip("/")

    def write(self, path: str, text: str, mode: int = 0o644) -> None:
        file = self.path(path)
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
        file.chmod(mode)

    def log(self, name: str) -> Path:
        """What the process of that name writes goes here."""
        return self.directory / "log" / f"{name}.log"

    # Commands -------------------------------------------------------------------------------------

    def environment(self) -> dict[str, str]:
        own = {"PYTHONUNBUFFERED": "1", "GRPC_VERBOSITY": "NONE", "ETCDCTL_API": "3"}
        environment = super().environment()
        programs = str(Path(sys.executable).parent)
        return environment | own | {"PATH": f"{programs}:{environment['PATH']}"}

    def entering(self) -> list[str]:
        return [
            "nsenter",
            "-t",
            str(self.pid),
            "-m",
            "-u",
            "-i",
            "-n",
            "-p",
            "-C",
            "-r",
            "-w",
            "--",
        ]

    def spawn(
        self, name: str, *command: str | Path, environment: dict[str, str] | None = None
    ) -> Process:
        """Start a program that stays. A former one of that name must have ended."""
        former = self.processes.get(name)
        assert former is None or not former.is_running, f"{name} runs on {self.name} already"
        with self.log(name).open("ab") as log:
            entry = subprocess.Popen(
                self.cgroups.joining(*self.entering(), *map(str, command)),
                env=self.environment() | (environment or {}),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        try:
            process = Process(name, entry, self.log(name))
        except AssertionError as error:
            raise AssertionError(f"{self.name}: {error}: {self.log(name).read_text()}") from None
        self.processes[name] = process
        return process

    def podman(self, *arguments: str) -> str:
        """What the host's podman says."""
        return self.run("podman", *arguments).stdout.strip()

    def remove_disk(self) -> None:
        shutil.rmtree(self.directory, ignore_errors=True)
