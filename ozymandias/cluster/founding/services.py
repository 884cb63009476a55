"""The programs of a host, as values: what each is, how it is started, which files it reads.

The same list is rendered as systemd units and run by the small supervisor. The order is that of
starting; each is waited for before the next. Nothing here starts anything.
"""

import os
import shutil
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from ozymandias.cluster import programs, units
from ozymandias.cluster.founding.record import HostRecord, Places
from ozymandias.problems import HOST_CLUSTER, ProblemError
from ozymandias.runtime import containers_conf

# Program -> (Debian package or what else brings it, where the unit's file assumes it).
OTHERS = {
    "etcd": ("apt-get install etcd-server", "/usr/bin/etcd"),
    "flanneld": ("put it into /opt/ozymandias/bin or on the PATH", "/opt/ozymandias/bin/flanneld"),
    "coredns": (
        "put it into /opt/ozymandias/bin or on the PATH, or use --dns builtin",
        "/opt/ozymandias/bin/coredns",
    ),
    "podman": ("apt-get install podman", "/usr/bin/podman"),
}
# Its client of etcd never gives up a question that a member took before it fell silent.
FLANNELD_START_SECONDS_MAX = 15.0
BIN_DIRS = ("/opt/ozymandias/bin", "/usr/local/bin", "/usr/local/sbin")


@dataclass(frozen=True, slots=True, kw_only=True)
class Service:
    """``command`` and ``environment`` are for the supervisor; systemd has ``unit``."""

    name: str
    unit: str
    command: tuple[str, ...]
    environment: Mapping[str, str]
    reads: tuple[Path, ...] = ()  # a change of one of these asks for a restart
    grace_seconds: float = 5.0
    start_seconds_max: float | None = None  # `TimeoutStartSec` of the unit


def find(name: str, bin_dirs: tuple[str, ...] = ()) -> str:
    """Where a program is; "" where it is not."""
    given = (*bin_dirs, os.environ.get("OZY_BIN", ""), *BIN_DIRS)
    path = os.pathsep.join(
        [*filter(None, given), os.environ.get("PATH", os.defpath), programs.SEARCH_PATH]
    )
    return shutil.which(name, path=path) or ""


def needed(record: HostRecord) -> tuple[str, ...]:
    wanted = ["etcd"] if record.part == "store" else []
    wanted += ["flanneld"] if record.cluster.network == "flannel" else []
    wanted += ["coredns"] if record.cluster.dns == "coredns" else []
    return (*wanted, *(() if record.podman_socket else ("podman",)))


def require_programs(record: HostRecord) -> None:
    missing = [name for name in needed(record) if not find(name, record.bin_dirs)]
    if missing:
        remedies = "; ".join(f"{name}: {OTHERS[name][0]}" for name in missing)
        raise ProblemError(
            HOST_CLUSTER(
                f"Not installed here: {', '.join(missing)}.", hint=f"{remedies}.", missing=missing
            )
        )


def services(record: HostRecord, places: Places) -> tuple[Service, ...]:
    """In the order of starting."""
    plain = programs.base_environment()
    found: list[Service] = []
    if record.part == "store":
        found.append(_etcd(record, places, plain))
    if not record.podman_socket:
        found.append(_podman(places, plain))
    if record.cluster.network == "flannel":
        found.append(_flanneld(record, places, plain))
    found.append(_dns(record, places, plain))
    found.append(_guard(places, plain))
    found += [_own(name, record, places, plain) for name in ("daemon", "ingress")]
    found.append(_keeper(places, plain))
    return tuple(found)


def _etcd(record: HostRecord, places: Places, plain: Mapping[str, str]) -> Service:
    return Service(
        name="etcd",
        unit="ozymandias-etcd.service",
        command=(find("etcd", record.bin_dirs) or "etcd",),
        environment={**plain, **etcd_environment(record, places)},
        grace_seconds=10.0,
    )


def etcd_environment(record: HostRecord, places: Places) -> dict[str, str]:
    """Every flag of etcd's is also read from the environment."""
    tls = {
        "CERT_FILE": places.cert("host"),
        "KEY_FILE": places.key("host"),
        "TRUSTED_CA_FILE": places.authority_cert,
        "CLIENT_CERT_AUTH": "true",
    }
    peer = {f"PEER_{key}": value for key, value in tls.items()}
    values = {
        "NAME": record.name,
        "DATA_DIR": places.etcd / "data",
        "LISTEN_CLIENT_URLS": record.client_url,
        "ADVERTISE_CLIENT_URLS": record.client_url,
        "LISTEN_PEER_URLS": record.peer_url,
        "INITIAL_ADVERTISE_PEER_URLS": record.peer_url,
        "INITIAL_CLUSTER": ",".join(record.initial_members),
        "INITIAL_CLUSTER_STATE": record.initial_state,
        "INITIAL_CLUSTER_TOKEN": f"ozymandias-{record.cluster.id}",
        **tls,
        **peer,
        "PEER_CERT_ALLOWED_CN": "ozymandias-host",
        "MAX_TXN_OPS": programs.ETCD_OPERATIONS_MAX,
        "AUTO_COMPACTION_MODE": "periodic",
        "AUTO_COMPACTION_RETENTION": programs.ETCD_COMPACTION,
        "QUOTA_BACKEND_BYTES": programs.ETCD_QUOTA_BYTES,
        "HEARTBEAT_INTERVAL": programs.ETCD_HEARTBEAT_MILLISECONDS,
        "ELECTION_TIMEOUT": programs.ETCD_ELECTION_MILLISECONDS,
        # A member that was cut off and returns must not make the others elect anew.
        "PRE_VOTE": "true",
        # A member that was removed must not stand up again as a cluster of its own.
        "STRICT_RECONFIG_CHECK": "true",
        "LOGGER": "zap",
        "LOG_LEVEL": "warn",
    }
    return {f"ETCD_{key}": str(value) for key, value in values.items()}


def _podman(places: Places, plain: Mapping[str, str]) -> Service:
    return Service(
        name="podman",
        unit="podman.socket",
        command=tuple(containers_conf.service_command(places.podman_socket)),
        environment=containers_conf.service_environment(places.containers_conf, plain),
        reads=(places.containers_conf,),
    )


def _flanneld(record: HostRecord, places: Places, plain: Mapping[str, str]) -> Service:
    return Service(
        name="flanneld",
        unit="ozymandias-flanneld.service",
        command=(find("flanneld", record.bin_dirs) or "flanneld",),
        environment={**plain, **flannel_environment(record, places)},
        reads=(places.settings / "flanneld.env",),
        start_seconds_max=FLANNELD_START_SECONDS_MAX,
    )


def flannel_environment(record: HostRecord, places: Places) -> dict[str, str]:
    """Every flag of flanneld's is also read from the environment."""
    return {
        "FLANNELD_ETCD_ENDPOINTS": ",".join(record.endpoints),
        "FLANNELD_ETCD_CAFILE": str(places.authority_cert),
        "FLANNELD_ETCD_CERTFILE": str(places.cert("client")),
        "FLANNELD_ETCD_KEYFILE": str(places.key("client")),
        "FLANNELD_IFACE": record.address,
        "FLANNELD_PUBLIC_IP": record.address,
        "FLANNELD_IP_MASQ": "true",
        "FLANNELD_SUBNET_FILE": str(places.flannel_subnet),
    }


def _dns(record: HostRecord, places: Places, plain: Mapping[str, str]) -> Service:
    if record.cluster.dns == "builtin":
        return _own("dns", record, places, plain)
    return Service(
        name="coredns",
        unit="ozymandias-coredns.service",
        command=(
            *(find("coredns", record.bin_dirs) or "coredns", "-quiet"),
            *("-conf", str(places.corefile)),
        ),
        environment=plain,
        reads=(places.corefile,),
    )


def _own(name: str, record: HostRecord, places: Places, plain: Mapping[str, str]) -> Service:
    program = "ozymandias" if name == "daemon" else f"ozymandias-{name}"
    return Service(
        name=name,
        unit=f"{program}.service",
        command=(
            *(sys.executable, "-P", str(Path(sys.executable).with_name(program))),
            *("--config", str(places.toml)),
        ),
        environment=plain,
        reads=(places.toml,),
        grace_seconds=15.0,
    )


def _guard(places: Places, plain: Mapping[str, str]) -> Service:
    return Service(
        name="guard",
        unit="ozymandias-guard.service",
        command=(
            *(sys.executable, "-P", "-m", "ozymandias.daemon.guard"),
            *("--config", str(places.toml)),
        ),
        environment=plain,
    )


def _keeper(places: Places, plain: Mapping[str, str]) -> Service:
    return Service(
        name="keeper",
        unit="ozymandias-keeper.service",
        command=(
            *(sys.executable, "-P", "-m", "ozymandias.cluster.founding.keeper"),
            *("--root", str(places.root)),
        ),
        environment=plain,
    )


# Units --------------------------------------------------------------------------------------------


def unit_files(record: HostRecord, places: Places, bin_dir: Path) -> dict[Path, str]:
    """systemd's files for these services: path -> text."""
    found: dict[Path, str] = {}
    for service in services(record, places):
        if service.unit == "podman.socket":
            drop_in = units.DROP_INS["podman-ozymandias.conf"]
            found[Path("/") / drop_in] = units.template("podman-ozymandias.conf")
            continue
        text = units.template(service.unit)
        if service.name in OTHERS:
            text = text.replace(OTHERS[service.name][1], service.command[0])
        found[Path("/") / units.UNIT_DIR / service.unit] = units.render(text, bin_dir)
    for name, path in units.SYSUSERS.items():
        found[Path("/") / path] = units.template(name)
    return found
