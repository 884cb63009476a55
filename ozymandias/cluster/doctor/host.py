"""A host that runs a daemon, by the daemon's own settings file: `ozy doctor --config FILE`.

Reads what the daemon would read and asks whom it would ask; it needs root to see all of it.
"""

import socket
import stat
from collections.abc import Iterator
from pathlib import Path

from ozymandias.cluster.doctor import etcd, listeners, service, storage
from ozymandias.cluster.doctor.check import Check, fail, ok, warn
from ozymandias.cluster.founding import record
from ozymandias.cluster.founding.record import Places
from ozymandias.daemon import config as settings
from ozymandias.daemon.config import Config
from ozymandias.problems import ProblemError

MACHINE_ID = Path("/etc/machine-id")
TOKEN_CHARACTERS_MIN = 16
READY_SECONDS_MAX = 3.0


def examine(file: Path) -> Iterator[Check]:
    try:
        config = settings.load(file)
        api = settings.host_port(config.api.listen, "[api] listen")
        ingress = settings.host_port(config.ingress.listen.split(",")[0], "[ingress] listen")
        dns = settings.host_port(config.dns.listen, "[dns] listen")
    except ProblemError as error:
        hint = error.problem.hint or f"Put {file} right; its example is deploy/systemd."
        yield fail("settings", error.problem.detail, hint)
        return
    yield ok("settings", str(file))
    yield from token(config)
    state_dir = Path(config.node.state_dir)
    yield from storage.examine(state_dir)
    checks, records = etcd.examine(config.etcd)
    yield from checks
    podman = Path(config.podman.socket)
    yield from service.examine(podman, config.podman.network, records.images if records else {})
    runs = is_locked(state_dir / "daemon.lock")
    yield from listeners.api(api, daemon_runs=runs)
    if records is not None:
        yield from own_record(config, records, daemon_runs=runs)
        yield from etcd.nodes(records)
    yield daemon(config, daemon_runs=runs)
    yield listeners.ingress(ingress)
    places = Places(root=file.absolute().parents[2])
    founded = record.load(places) if places.toml == file.absolute() else None
    log = "ozymandias-coredns" if founded and founded.cluster.dns == "coredns" else "ozymandias-dns"
    yield listeners.dns(dns, config.names.domain, f"`journalctl -u {log}`")
    if founded is not None:
        from ozymandias.cluster.doctor.founded import examine as examine_founded

        yield from examine_founded(founded, places, config)


def token(config: Config) -> Iterator[Check]:
    """The file with the token that clients must show by TCP."""
    if not config.api.token_file:
        yield warn(
            "token",
            "[api] token_file is not set: the API answers on its Unix socket only",
            "`openssl rand -hex 24` into a file that only root reads, the same on all nodes.",
        )
        return
    file = Path(config.api.token_file)
    try:
        text = file.read_text().strip()
        mode = stat.S_IMODE(file.stat().st_mode)
    except (OSError, UnicodeDecodeError) as error:
        yield fail(
            "token",
            f"{file} can't be read: {getattr(error, 'strerror', None) or error}",
            "The daemon will not start: `openssl rand -hex 24` into it, the same on all nodes.",
        )
        return
    if len(text) < TOKEN_CHARACTERS_MIN:
        detail = f"{file} holds {len(text)} characters: that can be guessed"
        yield fail("token", detail, "`openssl rand -hex 24` makes one; the same on all nodes.")
    elif mode & 0o077:
        yield warn("token", f"{file} can be read by others ({mode:04o})", f"`chmod 600 {file}`.")
    else:
        yield ok("token", str(file))


def is_locked(file: Path) -> bool:
    """Whether a process holds the lock, by the kernel's list: trying it could be in the way."""
    try:
        inode = file.stat().st_ino
        lines = Path("/proc/locks").read_text().splitlines()
    except OSError:
        return False
    # The device's number differs from stat's on overlay file systems; the inode must do.
    return any(line.split()[-3].rpartition(":")[2] == str(inode) for line in lines)


def own_record(config: Config, records: etcd.Records, *, daemon_runs: bool) -> Iterator[Check]:
    """What the store says about this node."""
    kept = Path(config.node.state_dir) / "cluster-id"
    mine = config.node.cluster or (kept.read_text().strip() if kept.exists() else "")
    if mine and records.cluster and mine != records.cluster:
        yield fail(
            "cluster",
            f"the store belongs to cluster {records.cluster}, this node to {mine}",
            f"Check [etcd] endpoints; to join that cluster, remove {kept} first.",
        )
    name = config.node.name or socket.gethostname().lower()
    node = next((node for node in records.nodes if node.name == name), None)
    if node is None or node.presence is None:
        return
    machine_id = config.node.machine_id or _machine_id()
    if node.presence.machine_id != machine_id:
        yield fail(
            "node name",
            f"{name} is taken: a node of that name is alive on another machine,"
            f" at {node.presence.address}",
            "Give this node another name ([node] name), or stop the other one first.",
        )
    elif not daemon_runs:
        yield warn(
            "lease",
            f"stale: the store still has {name} as alive, but its daemon does not run",
            f"`systemctl start ozymandias` within {config.node.lease_ttl_seconds} s keeps its"
            " instances; after that they are placed elsewhere.",
        )


def _machine_id() -> str:
    try:
        return MACHINE_ID.read_text().strip()
    except OSError:
        return ""


def daemon(config: Config, *, daemon_runs: bool) -> Check:
    if not daemon_runs:
        return fail(
            "daemon",
            "does not run",
            "`systemctl start ozymandias`; `journalctl -u ozymandias` says why it ended.",
        )
    path = Path(config.api.socket or Path(config.node.state_dir) / "api.sock")
    try:
        status, body = service.get(path, "/readyz", READY_SECONDS_MAX)
    except OSError as error:
        detail = f"runs, but does not answer at {path}: {error.strerror or error}"
        return fail("daemon", detail, "`journalctl -u ozymandias`; it starts again by itself.")
    if status == 200:
        return ok("daemon", "ready")
    said = body.decode(errors="replace").strip()[:200]
    return warn(
        "daemon", f"not ready: {said}", "`journalctl -u ozymandias` says what it waits for."
    )
