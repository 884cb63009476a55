"""The containers.conf that podman needs on this host, decided from a few facts.

podman's defaults fail on machines without systemd, with hybrid cgroups or without the right to
raise limits. We never edit the host's own configuration: the file rendered here is handed to our
podman through `$CONTAINERS_CONF`, which replaces the host's containers.conf for that process only.

`gather()` reads the facts, `decide()` turns them into settings (pure), `render()` writes TOML.
"""

import os
import resource
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

CAP_SYS_RESOURCE = 24  # bit number in /proc/self/status, see capabilities(7)
OPEN_FILES_MAX = 65536  # enough for a database
PROCESSES_MAX = 16384  # podman lowers its own limit to the kernel's pid_max, 32768 by default
LOG_SIZE_MAX_BYTES = 10 * 2**20  # per container; conmon starts the file anew beyond it
# How long the monitor of an ended exec stays, in case somebody asks for its exit code. podman's own
# 300 s would leave a crowd of them behind every exec probe; a second is too short on a busy host.
EXEC_LINGER_SECONDS = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class HostFacts:
    cgroups: Literal["v2", "hybrid", "v1"]
    has_systemd: bool
    can_raise_limits: bool  # CAP_SYS_RESOURCE
    open_files_max: int  # hard limits of this process; -1 means none
    processes_max: int
    runtimes: tuple[str, ...]  # of crun and runc, those installed


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    runtime: str
    cgroup_manager: Literal["systemd", "cgroupfs"]
    ulimits: tuple[str, ...]  # empty: podman's own
    log_size_max_bytes: int = LOG_SIZE_MAX_BYTES
    exec_linger_seconds: int = EXEC_LINGER_SECONDS


def gather() -> HostFacts:
    """The facts of this host and process."""
    return HostFacts(
        cgroups=_cgroups(),
        has_systemd=Path("/run/systemd/system").is_dir(),
        can_raise_limits=bool(_effective_capabilities() >> CAP_SYS_RESOURCE & 1),
        open_files_max=resource.getrlimit(resource.RLIMIT_NOFILE)[1],
        processes_max=resource.getrlimit(resource.RLIMIT_NPROC)[1],
        runtimes=tuple(name for name in ("crun", "runc") if _installed(name)),
    )


def decide(facts: HostFacts) -> Settings:
    """crun is lighter, but refuses hybrid cgroups; runc takes them all."""
    wants_runc = facts.cgroups != "v2" or "crun" not in facts.runtimes
    return Settings(
        runtime="runc" if wants_runc else "crun",
        cgroup_manager="systemd" if facts.has_systemd else "cgroupfs",
        ulimits=()
        if facts.can_raise_limits
        else (
            _ulimit("nofile", facts.open_files_max, OPEN_FILES_MAX),
            _ulimit("nproc", facts.processes_max, PROCESSES_MAX),
        ),
    )


def render(settings: Settings) -> str:
    """DNS is left out on purpose: servers set here would come before a pod's own.

    A pod's /etc/hosts names the pod and localhost, not what the host's own file knows.
    """
    lines = [
        "# Made by Ozymandias for its own podman service; see $CONTAINERS_CONF.",
        "[containers]",
    ]
    if settings.ulimits:
        quoted = ", ".join(f'"{limit}"' for limit in settings.ulimits)
        lines.append(f"default_ulimits = [{quoted}]")
    lines += [
        'log_driver = "k8s-file"',
        'base_hosts_file = "none"',
        f"log_size_max = {settings.log_size_max_bytes}",
        "[engine]",
        f'runtime = "{settings.runtime}"',
        f'cgroup_manager = "{settings.cgroup_manager}"',
        'events_logger = "file"',
        f"exit_command_delay = {settings.exec_linger_seconds}",
        "[network]",
        'network_backend = "netavark"',
    ]
    return "\n".join(lines) + "\n"


def write(file: Path) -> Path:
    """Write the configuration for this host; returns the file."""
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(render(decide(gather())))
    return file


def service_command(socket: Path) -> list[str]:
    """The podman service on a socket of ours, which never goes away for being idle.

    Give it a working directory of its own: its monitors leave a file `oom` there.
    """
    return ["podman", "system", "service", "--time=0", f"unix://{socket}"]


def service_environment(
    containers_conf: Path, base: Mapping[str, str] = os.environ
) -> dict[str, str]:
    """The environment of that service; NOTIFY_SOCKET must not leak into containers."""
    kept = {k: v for k, v in base.items() if k not in ("NOTIFY_SOCKET", "CONTAINER_HOST")}
    return kept | {"CONTAINERS_CONF": str(containers_conf)}


def _ulimit(name: str, hard: int, wanted: int) -> str:
    value = wanted if hard == resource.RLIM_INFINITY else min(hard, wanted)
    return f"{name}={value}:{value}"


def _cgroups() -> Literal["v2", "hybrid", "v1"]:
    root = Path("/sys/fs/cgroup")
    if (root / "cgroup.controllers").exists():
        return "v2"
    return "hybrid" if (root / "unified" / "cgroup.controllers").exists() else "v1"


def _effective_capabilities() -> int:
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("CapEff:"):
            return int(line.split()[1], 16)
    return 0


def _installed(name: str) -> bool:
    path = os.environ.get("PATH", os.defpath) + ":/usr/sbin:/sbin"
    return shutil.which(name, path=path) is not None
