"""This machine: its programs and their versions, cgroups, limits, and who has a port.

The judgments take facts as arguments; `examine` gathers them.
"""

import os
import re
import resource
import shutil
import subprocess
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from ozymandias.cluster import programs
from ozymandias.cluster.doctor import etcd
from ozymandias.cluster.doctor.check import Check, absent, dotted, fail, ok, warn
from ozymandias.runtime import containers_conf

COMMAND_SECONDS_MAX = 15.0
PODMAN_OLDEST = (4, 3)
FILES_WARN = 4096  # a daemon, its watches and streams; an ingress wants many more
FILES_FAIL = 512
CGROUP_ROOT = Path("/sys/fs/cgroup")
PROC = Path("/proc")
PACKAGES = {
    "netavark": "netavark",
    "conmon": "conmon",
    "catatonit": "catatonit",
    "nft": "nftables",
    "nsenter": "util-linux",
    "iptables": "iptables",
    "mkfs.ext4": "e2fsprogs",
    "losetup": "mount",
}
# podman keeps these in directories of its own.
BESIDE = {"netavark", "conmon", "catatonit"}
LIBEXEC = (Path("/usr/lib/podman"), Path("/usr/libexec/podman"), Path("/usr/libexec/catatonit"))


def examine(*, needs_etcd: bool) -> Iterator[Check]:
    """`needs_etcd`: the store is to be started here, not somewhere else."""
    yield root(os.geteuid())
    yield podman(_version("podman", "--version"))
    yield from containers(containers_conf.gather())
    yield from memory_controller(CGROUP_ROOT)
    if needs_etcd:
        found = _version("etcd", "--version")
        yield absent("etcd", "etcd-server") if found is None else etcd.version("etcd", found)
    yield tools(lambda name: shutil.which(name, path=_path()) is not None)
    yield open_files(resource.getrlimit(resource.RLIMIT_NOFILE)[1])
    yield from secure_shell(_listening_shells(PROC))


def root(uid: int) -> Check:
    if uid == 0:
        return ok("root", "running as root")
    return warn(
        "root",
        "not root: `ozy up`, `ozy down` and `ozy node` will refuse",
        "Use sudo for those; everything else works as any user who has the token.",
    )


def podman(version: tuple[int, ...] | None) -> Check:
    if version is None:
        return absent("podman", "podman")
    if version < PODMAN_OLDEST:
        detail = f"version {dotted(version)}; {dotted(PODMAN_OLDEST)} is the oldest that is tested"
        return fail("podman", detail, "Install the one of Debian 12 or later.")
    return ok("podman", f"version {dotted(version)}")


def containers(facts: containers_conf.HostFacts) -> Iterator[Check]:
    """What our containers.conf makes of this host; the host's own file is never touched."""
    if not facts.runtimes:
        yield absent("OCI runtime", "runc")
        return
    chosen = containers_conf.decide(facts)
    yield ok("OCI runtime", f"{chosen.runtime} will be used")
    cgroups = f"cgroups {facts.cgroups}, managed by {chosen.cgroup_manager}"
    if facts.cgroups == "v2":
        yield ok("cgroups", cgroups)
    else:
        yield warn(
            "cgroups",
            f"{cgroups}: memory limits hold, but podman 5 will not take this layout",
            "Boot with systemd.unified_cgroup_hierarchy=1 where you can.",
        )
    if not facts.can_raise_limits:
        yield warn(
            "limits",
            f"limits can't be raised here; containers get {', '.join(chosen.ulimits)}",
            "Grant CAP_SYS_RESOURCE if a workload needs more.",
        )


def memory_controller(root_: Path) -> Iterator[Check]:
    """Some boards boot with it switched off; no container starts with a limit then."""
    unified = root_ / "cgroup.controllers"
    there = (
        "memory" in unified.read_text().split() if unified.exists() else (root_ / "memory").is_dir()
    )
    if not there:
        yield fail(
            "memory cgroup",
            "the kernel offers no memory controller: memory limits can't be kept",
            "Boot with cgroup_enable=memory (Raspberry Pi: in /boot/firmware/cmdline.txt).",
        )


def tools(is_there: Callable[[str], bool]) -> Check:
    missing = [
        name
        for name in PACKAGES
        if not is_there(name) and not (name in BESIDE and any((d / name).exists() for d in LIBEXEC))
    ]
    if not missing:
        return ok("tools", ", ".join(PACKAGES))
    packages = dict.fromkeys(PACKAGES[name] for name in missing)
    return fail(
        "tools", f"not installed: {', '.join(missing)}", f"apt-get install {' '.join(packages)}"
    )


def open_files(hard: int) -> Check:
    if hard == resource.RLIM_INFINITY or hard >= FILES_WARN:
        return ok("open files", "no limit" if hard < 0 else f"up to {hard}")
    detail = f"at most {hard} open files: connections and streams will be refused"
    remedy = "Raise it: `ulimit -n 65536`, or LimitNOFILE= in the unit, or limits.conf(5)."
    return (fail if hard < FILES_FAIL else warn)("open files", detail, remedy)


# Facts --------------------------------------------------------------------------------------------


def secure_shell(scores: Sequence[int]) -> Iterator[Check]:
    """The way in when a host is out of memory; ``scores`` are those of sshd, none where none runs.

    Pods have 200 and more, so at 0 it is still behind all but the smallest of them; below 0 it is
    behind everything. It takes -1000 by itself when root starts it outside of a container.
    """
    if not scores:
        return
    if max(scores) < 0:
        yield ok("sshd", f"spared when memory runs out (oom_score_adj {max(scores)})")
        return
    yield warn(
        "sshd",
        f"may be killed when memory runs out, and then nobody can log in (its oom_score_adj is"
        f" {max(scores)})",
        "systemctl restart ssh; if that does not help: systemctl edit ssh,"
        " with OOMScoreAdjust=-1000 under [Service].",
    )


def _listening_shells(proc: Path) -> list[int]:
    """The scores of sshd: of this host, not of pods; and not of people's sessions, which may go."""
    found: dict[int, tuple[int, int]] = {}
    try:
        own = (proc / "self" / "ns" / "pid").readlink()
    except OSError:
        return []
    for directory in proc.glob("[0-9]*"):
        try:
            if (directory / "comm").read_text().strip() != "sshd":
                continue
            if (directory / "ns" / "pid").readlink() != own:
                continue
            parent = int((directory / "stat").read_text().rpartition(")")[2].split()[1])
            score = int((directory / "oom_score_adj").read_text())
        except (OSError, ValueError, IndexError):
            continue  # it is gone, or not ours to look at
        found[int(directory.name)] = (parent, score)
    return [score for parent, score in found.values() if parent not in found]


def _path() -> str:
    return f"{os.environ.get('PATH', os.defpath)}:{programs.SEARCH_PATH}"


def _version(*command: str) -> tuple[int, ...] | None:
    """The first dotted number that the command prints; None when it is not there."""
    executable = shutil.which(command[0], path=_path())
    if executable is None:
        return None
    try:
        done = subprocess.run(
            [executable, *command[1:]],
            capture_output=True,
            text=True,
            timeout=COMMAND_SECONDS_MAX,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    match = re.search(r"\d+(?:\.\d+)+", done.stdout)
    return tuple(int(part) for part in match[0].split(".")) if match else None
