"""`ozy doctor`: what this machine has, what it lacks, what follows, and what to do about it.

Each examination gathers a few facts and returns checks; a check is ok, a warning (it works, but
know this) or a failure (it will not work), and says how to put it right. Nothing is changed.
"""

import os
import re
import shutil
import subprocess
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

from ozymandias.cluster import addresses, programs, reach, state
from ozymandias.cluster.state import LocalCluster
from ozymandias.model.units import format_size
from ozymandias.problems import ProblemError
from ozymandias.runtime import containers_conf

Verdict = Literal["ok", "warn", "fail"]
COMMAND_SECONDS_MAX = 15.0
DISK_WARN_BYTES = 5 * 2**30
DISK_FAIL_BYTES = 2**29
PODMAN_OLDEST = (4, 3)


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    name: str
    verdict: Verdict
    detail: str
    remedy: str = ""

    def document(self) -> dict[str, Any]:
        return asdict(self)


@dataclass(frozen=True, slots=True, kw_only=True)
class Patient:
    """What is known about the cluster in use: from the CLI's context, or nothing."""

    endpoints: Sequence[str] = ()
    token: str = ""
    state_dir: Path | None = None


def examine(patient: Patient) -> Iterator[Check]:
    """All checks, in the order in which things depend on each other."""
    yield root(os.geteuid())
    yield podman(_version("podman", "--version"))
    yield from containers(containers_conf.gather())
    yield etcd(_version("etcd", "--version"))
    yield tools(lambda name: shutil.which(name, path=_path()) is not None)
    yield disk(shutil.disk_usage("/var/lib").free)
    cluster = _local_cluster(patient)
    if isinstance(cluster, Check):
        yield cluster
    elif cluster is None:
        yield ports()
    else:
        yield from local(cluster)
    yield from api(patient)


def worst(checks: Sequence[Check]) -> Verdict:
    verdicts = {check.verdict for check in checks}
    return "fail" if "fail" in verdicts else "warn" if "warn" in verdicts else "ok"


# This machine -------------------------------------------------------------------------------------


def root(uid: int) -> Check:
    if uid == 0:
        return Check(name="root", verdict="ok", detail="running as root")
    return Check(
        name="root",
        verdict="warn",
        detail="not root: `ozy up`, `ozy down` and `ozy node` will refuse",
        remedy="Use sudo for those; everything else works as any user who has the token.",
    )


def podman(version: tuple[int, ...] | None) -> Check:
    if version is None:
        return _absent("podman", "podman")
    text = _dotted(version)
    if version < PODMAN_OLDEST:
        oldest = _dotted(PODMAN_OLDEST)
        remedy = "Install the one of Debian 12 or later."
        detail = f"version {text}; {oldest} is the oldest that is tested"
        return Check(name="podman", verdict="fail", detail=detail, remedy=remedy)
    return Check(name="podman", verdict="ok", detail=f"version {text}")


def containers(facts: containers_conf.HostFacts) -> Iterator[Check]:
    """What our containers.conf makes of this host; the host's own file is never touched."""
    if not facts.runtimes:
        yield _absent("OCI runtime", "runc")
        return
    chosen = containers_conf.decide(facts)
    yield Check(name="OCI runtime", verdict="ok", detail=f"{chosen.runtime} will be used")
    cgroups = f"cgroups {facts.cgroups}, managed by {chosen.cgroup_manager}"
    if facts.cgroups == "v2":
        yield Check(name="cgroups", verdict="ok", detail=cgroups)
    else:
        yield Check(
            name="cgroups",
            verdict="warn",
            detail=f"{cgroups}: memory limits hold, but podman 5 will not take this layout",
            remedy="Boot with systemd.unified_cgroup_hierarchy=1 where you can.",
        )
    if not facts.can_raise_limits:
        yield Check(
            name="limits",
            verdict="warn",
            detail=f"limits can't be raised here; containers get {', '.join(chosen.ulimits)}",
            remedy="Grant CAP_SYS_RESOURCE if a workload needs more.",
        )


# (fixed in, what happens before): the newest of each line that matters to us.
ETCD_FIXES: tuple[tuple[tuple[tuple[int, ...], ...], str], ...] = (
    (((3, 4, 25), (3, 5, 8)), "a watch can go back in time after a snapshot"),
    (((3, 4, 31), (3, 5, 13)), "a stuck former leader can revoke live leases"),
    (((3, 4, 38), (3, 5, 23)), "a keep-alive can succeed for a revoked lease"),
)


def etcd(version: tuple[int, ...] | None) -> Check:
    if version is None:
        return _absent("etcd", "etcd-server")
    text = _dotted(version)
    if (3, 5, 0) <= version <= (3, 5, 2):
        return Check(
            name="etcd",
            verdict="fail",
            detail=f"version {text} can lose agreement after a crash",
            remedy="Use 3.5.33 or 3.6.14, or later ones.",
        )
    if version >= (3, 6, 14) or (3, 5, 33) <= version < (3, 6):
        return Check(name="etcd", verdict="ok", detail=f"version {text}")
    known = [
        what
        for fixed, what in ETCD_FIXES
        if not any(version[:2] == f[:2] and version >= f for f in fixed) and version < (3, 6)
    ]
    what = f": {'; '.join(known)}" if known else ""
    return Check(
        name="etcd",
        verdict="warn",
        detail=f"version {text} serves for trying out{what}",
        remedy="In production use 3.5.33 or 3.6.14, or later ones.",
    )


def tools(is_there: Callable[[str], bool]) -> Check:
    packages = {
        "netavark": "netavark",
        "conmon": "conmon",
        "catatonit": "catatonit",
        "nft": "nftables",
        "iptables": "iptables",
        "mkfs.ext4": "e2fsprogs",
        "losetup": "mount",
    }
    beside = {"netavark", "conmon", "catatonit"}  # podman keeps them in directories of its own
    missing = [
        name
        for name in packages
        if not is_there(name)
        and not (name in beside and any((d / name).exists() for d in _LIBEXEC))
    ]
    if not missing:
        return Check(name="tools", verdict="ok", detail=", ".join(packages))
    return Check(
        name="tools",
        verdict="fail",
        detail=f"not installed: {', '.join(missing)}",
        remedy=f"apt-get install {' '.join(packages[name] for name in missing)}",
    )


_LIBEXEC = (Path("/usr/lib/podman"), Path("/usr/libexec/podman"), Path("/usr/libexec/catatonit"))


def disk(free_bytes: int) -> Check:
    detail = f"{format_size(free_bytes)} free in /var/lib"
    if free_bytes >= DISK_WARN_BYTES:
        return Check(name="disk", verdict="ok", detail=detail)
    return Check(
        name="disk",
        verdict="fail" if free_bytes < DISK_FAIL_BYTES else "warn",
        detail=f"{detail}: images and volumes need more",
        remedy="`podman image prune` frees what no container uses.",
    )


def ports() -> Check:
    usual = {addresses.API_PORT: "API", addresses.INGRESS_PORT: "ingress"}
    taken = [f"{port} ({what})" for port, what in usual.items() if not addresses.is_free(port)]
    if not taken:
        return Check(name="ports", verdict="ok", detail="7400 (API) and 8080 (ingress) are free")
    return Check(
        name="ports",
        verdict="warn",
        detail=f"taken: {', '.join(taken)}; `ozy up` will choose others and say which",
        remedy="--api-port and --ingress-port choose them yourself.",
    )


# The cluster --------------------------------------------------------------------------------------


def _local_cluster(patient: Patient) -> LocalCluster | Check | None:
    directory = patient.state_dir or state.DEFAULT_STATE_DIR
    try:
        return state.load(directory)
    except ProblemError as error:
        problem = error.problem
        return Check(
            name="local cluster", verdict="fail", detail=problem.detail, remedy=problem.hint
        )


def local(cluster: LocalCluster) -> Iterator[Check]:
    """The cluster that `ozy up` made: its supervisor, its programs, its DNS."""
    try:
        status = reach.ask_supervisor(cluster, do="status")
    except OSError:
        yield Check(
            name="local cluster",
            verdict="fail",
            detail=f"{cluster.state_dir} holds a cluster that does not run",
            remedy="`ozy up` brings it back, `ozy down` removes it.",
        )
        return
    yield Check(name="local cluster", verdict="ok", detail=f"{cluster.id} in {cluster.state_dir}")
    for program in status["programs"]:
        yield _program(program, cluster)
    if reach.dns_answers("127.0.0.1", cluster.dns_port, "doctor.ozy.internal"):
        detail = f"{cluster.gateway}:53 for pods, 127.0.0.1:{cluster.dns_port} for this host"
        yield Check(name="dns", verdict="ok", detail=detail)
    else:
        yield Check(
            name="dns",
            verdict="fail",
            detail=f"no answer on 127.0.0.1:{cluster.dns_port}",
            remedy=f"{cluster.logs / 'dns.log'} says why.",
        )


def _program(program: Mapping[str, Any], cluster: LocalCluster) -> Check:
    name = program["name"]
    if program["pid"] is not None:
        restarts = program["starts"] - 1
        detail = f"pid {program['pid']}" + (f", restarted {restarts} times" if restarts else "")
        if restarts:
            detail += f", last: {program['last_exit']}"
        return Check(name=name, verdict="warn" if program["failures"] else "ok", detail=detail)
    if not program["wanted"]:
        remedy = f"`ozy node start {name}` brings it back."
        return Check(name=name, verdict="warn", detail="killed on purpose", remedy=remedy)
    return Check(
        name=name,
        verdict="fail",
        detail=f"not running: {program['last_exit']}",
        remedy=f"{cluster.logs / (name + '.log')} says why.",
    )


def api(patient: Patient) -> Iterator[Check]:
    """Every endpoint of the context, then the nodes as the cluster sees them."""
    if not patient.endpoints:
        yield Check(
            name="context",
            verdict="warn",
            detail="no cluster is chosen",
            remedy="`ozy up` makes one on this machine; `ozy context` chooses another.",
        )
        return
    yield Check(name="context", verdict="ok", detail=", ".join(patient.endpoints))
    rows: list[dict[str, Any]] | None = None
    for endpoint in patient.endpoints:
        check, found = _endpoint(endpoint, patient.token)
        yield check
        rows = found if rows is None else rows
    for row in rows or ():
        healthy = row["state"] == "ready"
        reason = row.get("reason") or ""
        yield Check(
            name=f"node {row['name']}",
            verdict="ok" if healthy else "warn",
            detail=row["state"] + (f": {reason}" if reason else ""),
            remedy="" if healthy else "`ozy events` says what happened.",
        )


def _endpoint(endpoint: str, token: str) -> tuple[Check, list[dict[str, Any]] | None]:
    name = f"API {endpoint}"
    try:
        answer = reach.get(f"{endpoint}/v1/nodes", token)
    except OSError as error:
        remedy = "Another endpoint is used meanwhile; `ozy nodes` shows who is there."
        return Check(name=name, verdict="warn", detail=f"no answer: {error}", remedy=remedy), None
    if answer.status == 200:
        return Check(name=name, verdict="ok", detail="answers"), list(answer.json()["items"])
    try:
        problem = answer.json()
        detail, hint = problem.get("detail", ""), problem.get("hint", "")
    except ValueError:
        detail, hint = "", ""
    detail = f"HTTP {answer.status} {detail}".strip()
    return Check(name=name, verdict="fail", detail=detail, remedy=hint), None


# Facts --------------------------------------------------------------------------------------------


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


def _dotted(version: tuple[int, ...]) -> str:
    return ".".join(str(part) for part in version)


def _absent(name: str, package: str) -> Check:
    return Check(
        name=name, verdict="fail", detail="not installed", remedy=f"apt-get install {package}"
    )
