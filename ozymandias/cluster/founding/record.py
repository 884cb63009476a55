"""What a host is in a cluster of hosts: written down before anything is done, and kept.

`host.json` beside the daemon's settings holds all from which the host's files and programs follow,
and how far `init` or `join` has come, so that the same command, run again, goes on where it was
interrupted. `ClusterSettings` is what all hosts share, in etcd.
"""

import ipaddress
import json
import os
import re
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Literal

import msgspec

from ozymandias.cluster.state import write_json
from ozymandias.problems import HOST_CLUSTER, Problem, ProblemError

FORMAT = 1
NAME = re.compile(r"[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?")
MACHINE_ID = Path("/etc/machine-id")
ETCD_PORT = 2379
ETCD_PEER_PORT = 2380
API_PORT = 7400
DOOR_PORT = 7401

Stage = Literal["begun", "ready", "leaving"]
Part = Literal["store", "client"]  # holds a member of etcd, or only asks
PodNetwork = Literal["flannel", "bridge"]
Dns = Literal["coredns", "builtin"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterSettings:
    """How the cluster was founded; the same on every host."""

    id: str
    network: PodNetwork = "flannel"
    pod_network: str = "10.78.0.0/16"
    pod_subnet_bits: int = 24  # of each host
    backend: str = "vxlan"
    dns: Dns = "coredns"
    domain: str = "ozy.internal"
    ingress_domain: str = "localhost"
    members_max: int = 3
    lease_ttl_seconds: int = 15


@dataclass(frozen=True, slots=True, kw_only=True)
class HostRecord:
    """One host, by its own word."""

    cluster: ClusterSettings
    name: str
    address: str
    stage: Stage = "begun"
    part: Part = "store"
    endpoints: tuple[str, ...] = ()  # https://… of etcd's members that serve
    initial_members: tuple[str, ...] = ()  # name=url of those that etcd here starts with
    initial_state: Literal["new", "existing"] = "new"
    ingress_listen: str = "0.0.0.0:80"
    podman_socket: str = ""  # of a podman service that others look after; "": ours
    machine_id: str = ""  # "": the machine's own
    memory: str = ""
    disk: str = ""
    bin_dirs: tuple[str, ...] = ()  # where programs are looked for first
    labels: dict[str, str] = field(default_factory=dict)

    @property
    def peer_url(self) -> str:
        return f"https://{_host(self.address)}:{ETCD_PEER_PORT}"

    @property
    def client_url(self) -> str:
        return f"https://{_host(self.address)}:{ETCD_PORT}"

    @property
    def api_url(self) -> str:
        return f"https://{_host(self.address)}:{API_PORT}"


@dataclass(frozen=True, slots=True, kw_only=True)
class KnownHost:
    """One host, as all the others know it, in etcd."""

    name: str
    address: str
    machine_id: str
    part: Part
    joined: float  # wall clock
    expires: float = 0.0  # of its certificate
    version: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Places:
    """Where things are on a host, or below another root directory."""

    root: Path = Path("/")

    @property
    def is_whole_host(self) -> bool:
        return self.root == Path("/")

    @property
    def settings(self) -> Path:
        return self.root / "etc/ozymandias"

    @property
    def record(self) -> Path:
        return self.settings / "host.json"

    @property
    def toml(self) -> Path:
        return self.settings / "ozymandias.toml"

    @property
    def corefile(self) -> Path:
        return self.settings / "Corefile"

    @property
    def containers_conf(self) -> Path:
        return self.settings / "containers.conf"

    @property
    def token(self) -> Path:
        """The founder's own copy, as it was given out; daemons never read it."""
        return self.settings / "token"

    @property
    def token_hashes(self) -> Path:
        return self.settings / "tokens"

    @property
    def certificates(self) -> Path:
        return self.settings / "tls"

    @property
    def authority_cert(self) -> Path:
        return self.certificates / "ca.crt"

    @property
    def authority_key(self) -> Path:
        return self.certificates / "ca.key"

    def cert(self, use: str) -> Path:
        return self.certificates / f"{use}.crt"

    def key(self, use: str) -> Path:
        return self.certificates / f"{use}.key"

    @property
    def state(self) -> Path:
        return self.root / "var/lib/ozymandias"

    @property
    def etcd(self) -> Path:
        return self.state / "etcd"

    @property
    def logs(self) -> Path:
        return self.state / "logs"

    @property
    def run(self) -> Path:
        """Gone after a reboot."""
        return self.root / "run/ozymandias"

    @property
    def supervisor_socket(self) -> Path:
        return self.run / "supervisor.sock"

    @property
    def podman_socket(self) -> Path:
        if self.is_whole_host:
            return Path("/run/podman/podman.sock")
        return self.run / "podman.sock"

    @property
    def flannel_subnet(self) -> Path:
        return self.root / "run/flannel/subnet.env"

    @property
    def api_socket(self) -> Path:
        return self.state / "api.sock"

    @property
    def has_systemd(self) -> bool:
        return self.is_whole_host and Path("/run/systemd/system").is_dir()


def load(places: Places) -> HostRecord | None:
    """None where no cluster was founded or joined. A damaged file is a problem."""
    try:
        document = json.loads(places.record.read_text())
        if document.pop("format") != FORMAT:
            raise ValueError("it was written by another version")
        return msgspec.convert(document, HostRecord)
    except FileNotFoundError:
        return None
    except (OSError, ValueError, TypeError, KeyError) as error:
        raise ProblemError(
            HOST_CLUSTER(
                f"{places.record} can't be read: {error}.",
                hint="`ozy node leave --force` removes what this host has of a cluster.",
            )
        ) from error


def save(places: Places, record: HostRecord) -> None:
    places.settings.mkdir(parents=True, exist_ok=True)
    write_json(places.record, asdict(record) | {"format": FORMAT})
    places.record.chmod(0o644)


def with_stage(places: Places, record: HostRecord, stage: Stage) -> HostRecord:
    fresh = replace(record, stage=stage)
    save(places, fresh)
    return fresh


def forget(places: Places) -> None:
    places.record.unlink(missing_ok=True)


def check(name: str, address: str) -> Problem | None:
    """Whether a host can be called that, and be reached there."""
    if not NAME.fullmatch(name):
        return HOST_CLUSTER(
            f"{name!r} can't be a host's name: lower case letters, digits and dashes, up to 63.",
            hint="--name gives it another one in the cluster.",
        )
    try:
        found = ipaddress.ip_address(address)
    except ValueError:
        return HOST_CLUSTER(
            f"{address!r} is not an address.", hint="--address takes one that other hosts reach."
        )
    if found.is_unspecified or found.is_multicast:
        return HOST_CLUSTER(f"{address} is not the address of one host.")
    return None


def read_machine_id() -> str:
    try:
        found = MACHINE_ID.read_text().strip()
    except (OSError, UnicodeDecodeError):
        found = ""
    if not found:
        raise ProblemError(
            HOST_CLUSTER(
                "This machine has no /etc/machine-id.", hint="`systemd-machine-id-setup` makes one."
            )
        )
    return found


def require_root(places: Places) -> None:
    if os.geteuid() != 0:
        raise ProblemError(
            HOST_CLUSTER(
                f"Changing what is in {places.root} takes root.",
                hint="Run it with sudo; --dry-run shows what it would do.",
            )
        )


def _host(address: str) -> str:
    return f"[{address}]" if ":" in address else address
