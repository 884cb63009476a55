"""Settings of the daemon, the ingress and the DNS responder: one TOML file, then `OZY_*`.

The file has one table per dataclass below (`[node]`, `[etcd]`, ...). An unknown table or key, or a
wrong type, is a problem that names it. `OZY_NODE_MEMORY=8G` overrides `memory` in `[node]`.
"""

import os
import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, get_type_hints

from ozymandias.model.units import parse_size
from ozymandias.problems import CONFIG_INVALID, ProblemError

DEFAULT_FILE = Path("/etc/ozymandias/ozymandias.toml")


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeConfig:
    name: str = ""  # default: the host name
    cluster: str = ""  # id of the cluster to found; default: made up by the first daemon
    address: str = "127.0.0.1"
    memory: str = ""  # what may be allocated, e.g. "8G"; default: all of the host's
    disk: str = ""
    cpu: str = ""  # cores, e.g. "2.5"; default: all of the host's; "0": not counted
    reserve_memory: str = ""  # default: 512M or 5 % of the host's, whichever is more; of a
    reserve_disk: str = ""  # given `memory` or `disk` nothing, for it says what may be allocated
    reserve_cpu: str = ""  # cores; default: none
    allow_host_network: bool = False  # to pods of system jobs that ask for it
    labels: dict[str, str] = field(default_factory=dict)
    state_dir: str = "/var/lib/ozymandias"
    run_dir: str = "/run/ozymandias"  # what must not survive a boot: the guard's files
    shared_dir: str = "/var/lib/ozymandias/shared"  # base of shared volumes
    lease_ttl_seconds: int = 15
    start_clean: bool = False
    breaker_seconds: float = 60.0  # DESIGN: the mass-loss breaker's patience
    schedules: bool = True  # False, in large clusters: follow only what is this node's own
    pressure: bool = True  # short of memory or disk, the host takes no new work, then sheds some
    steady_seconds: float = 60.0  # a node or instance is there so long before anything is moved
    machine_id: str = ""  # default: /etc/machine-id


@dataclass(frozen=True, slots=True, kw_only=True)
class EtcdConfig:
    endpoints: tuple[str, ...] = ("127.0.0.1:2379",)
    ca_file: str = ""
    cert_file: str = ""
    key_file: str = ""
    user: str = ""
    password_file: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class ApiConfig:
    listen: str = "127.0.0.1:7400"
    socket: str = ""  # Unix socket for root; "" means <state_dir>/api.sock
    token_file: str = ""  # hashes of the tokens TCP clients must show; "" means TCP is closed
    hosts: tuple[str, ...] = ()  # names to be asked by, beside addresses and the node's own name
    cert_file: str = ""  # the certificate that TCP is served with; "" means plain HTTP
    key_file: str = ""
    ca_file: str = ""  # the authority that made the certificates of all nodes
    requests_per_second: int = 500  # of one token, after a burst of four times as many; 0: no limit
    connections_max: int = 2048
    audit_max: str = "10M"  # of <state_dir>/audit.log; the one before is kept as well


@dataclass(frozen=True, slots=True, kw_only=True)
class PodmanConfig:
    socket: str = "/run/podman/podman.sock"
    network: str = "ozymandias"
    network_kind: str = "bridge"  # of one machine; "flannel": pods of several hosts in one network
    subnet: str = "10.89.64.0/20"  # of the bridge; flannel gives each host its own
    flannel_subnet_file: str = "/run/flannel/subnet.env"  # what flanneld writes
    networks_dir: str = "/etc/containers/networks"  # where podman looks for networks
    dns_server: str = ""  # what pods ask; default: the bridge's gateway; with flannel the address


@dataclass(frozen=True, slots=True, kw_only=True)
class NamesConfig:
    domain: str = "ozy.internal"  # of instances, in DNS
    ingress_domain: str = "localhost"  # of default hosts at the ingress


@dataclass(frozen=True, slots=True, kw_only=True)
class IngressConfig:
    listen: str = "127.0.0.1:8080"
    status_listen: str = ""  # host:port of /healthz and /metrics; "" means none
    trusted_proxies: tuple[str, ...] = ()  # networks whose X-Forwarded-* are believed
    access_log: str = ""  # a file that gets a line of JSON for each request; "" means none
    body_max: str = ""  # of a request, e.g. "100M"; "" means none
    connections_max: int = 16384
    connections_per_address_max: int = 4096


@dataclass(frozen=True, slots=True, kw_only=True)
class DnsConfig:
    listen: str = "127.0.0.1:53"  # an address that does not exist yet is fine (freebind)
    host_listen: str = ""  # a second address to answer on, for the host itself; "" means none
    forwarders: tuple[str, ...] = ()  # default: those of /etc/resolv.conf


@dataclass(frozen=True, slots=True, kw_only=True)
class AutoscaleConfig:
    # Commands that pools may ask for pending work, word for word; none: no command is ever run.
    commands: tuple[str, ...] = ()
    user: str = "nobody"  # whom they are run as, where the daemon may choose


@dataclass(frozen=True, slots=True, kw_only=True)
class Config:
    node: NodeConfig = NodeConfig()
    etcd: EtcdConfig = EtcdConfig()
    api: ApiConfig = ApiConfig()
    podman: PodmanConfig = PodmanConfig()
    names: NamesConfig = NamesConfig()
    ingress: IngressConfig = IngressConfig()
    dns: DnsConfig = DnsConfig()
    autoscale: AutoscaleConfig = AutoscaleConfig()


def load(file: Path | None, environment: Mapping[str, str] = os.environ) -> Config:
    """The file's settings (defaults if there is none), overridden by `OZY_<TABLE>_<KEY>`."""
    tables: dict[str, Any] = {}
    if file is not None:
        try:
            tables = tomllib.loads(file.read_text())
        except (OSError, tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
            raise ProblemError(CONFIG_INVALID(f"{file}: {error}")) from error
    sections = {
        f.name: f.default_factory() if callable(f.default_factory) else f.default
        for f in fields(Config)
    }
    for name in tables.keys() - sections.keys():
        raise ProblemError(
            CONFIG_INVALID(
                f"{file}: unknown table [{name}]", hint=f"Known tables: {', '.join(sections)}."
            )
        )
    values = {
        name: _section(type(default), name, tables.get(name, {}), environment)
        for name, default in sections.items()
    }
    return Config(**values)


def _section(kind: type, table: str, given: Any, environment: Mapping[str, str]) -> Any:
    hints = get_type_hints(kind)
    if not isinstance(given, dict):
        raise ProblemError(CONFIG_INVALID(f"[{table}] must be a table"))
    for key in given.keys() - hints.keys():
        raise ProblemError(
            CONFIG_INVALID(
                f"[{table}]: unknown setting {key!r}", hint=f"Known settings: {', '.join(hints)}."
            )
        )
    values: dict[str, Any] = {}
    for key, hint in hints.items():
        text = environment.get(f"OZY_{table}_{key}".upper())
        if text is not None:
            values[key] = _from_text(hint, text, f"OZY_{table}_{key}".upper())
        elif key in given:
            values[key] = _checked(hint, given[key], f"[{table}] {key}")
    return kind(**values)


def _from_text(hint: Any, text: str, where: str) -> Any:
    try:
        if hint is bool:
            return {"1": True, "true": True, "0": False, "false": False}[text.lower()]
        if hint in (int, float):
            return hint(text)
    except (KeyError, ValueError):
        raise ProblemError(CONFIG_INVALID(f"{where}: {text!r} is not a {hint.__name__}")) from None
    if hint == tuple[str, ...]:
        return tuple(part.strip() for part in text.split(",") if part.strip())
    if hint == dict[str, str]:
        return dict(part.split("=", 1) for part in text.split(",") if "=" in part)
    return text


def _checked(hint: Any, value: Any, where: str) -> Any:
    if hint == tuple[str, ...] and isinstance(value, list):
        return tuple(str(v) for v in value)
    if hint == dict[str, str] and isinstance(value, dict):
        return {str(k): str(v) for k, v in value.items()}
    if hint is float and isinstance(value, int) and not isinstance(value, bool):
        return float(value)
    if hint in (str, int, float, bool) and type(value) is hint:
        return value
    raise ProblemError(CONFIG_INVALID(f"{where}: {value!r} is not what is expected here"))


def size(text: str, where: str) -> int:
    try:
        return parse_size(text)
    except ValueError as error:
        raise ProblemError(CONFIG_INVALID(f"{where}: {error}")) from None


def cores(text: str, where: str) -> int:
    """Thousandths of cores."""
    if not re.fullmatch(r"[0-9]{1,5}(\.[0-9]{1,3})?", text):
        raise ProblemError(CONFIG_INVALID(f"{where}: {text!r} is not a number of cores like 2.5"))
    return round(float(text) * 1000)


def host_port(text: str, where: str) -> tuple[str, int]:
    host, _, port = text.rpartition(":")
    if not host or not port.isdigit() or int(port) > 65535:
        raise ProblemError(CONFIG_INVALID(f"{where}: {text!r} is not HOST:PORT"))
    return host.strip("[]"), int(port)
