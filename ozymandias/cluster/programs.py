"""The programs of a local cluster: their settings files, command lines and environment.

One etcd, one podman service, one guard, one ingress and one DNS responder serve all nodes; each
node is a daemon with a settings file of its own. Nothing here starts anything.
"""

import os
import shutil
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from ozymandias.cluster.state import LocalCluster, LocalNode
from ozymandias.problems import LOCAL_CLUSTER, ProblemError
from ozymandias.runtime import containers_conf

LEASE_TTL_SECONDS = 6
ETCD_OPERATIONS_MAX = 8192  # per transaction
ETCD_COMPACTION = "5m"
ETCD_QUOTA_BYTES = 2 * 2**30
# Of members on several hosts. A new leader lets every lease run once more from its beginning, and
# for this time longer: with etcd's own 1000 ms and a vote that must be repeated, a dead leader's
# host is missed later than TTL + 5 s. With much less, a starved leader loses its place.
ETCD_HEARTBEAT_MILLISECONDS = 70
ETCD_ELECTION_MILLISECONDS = 700
SEARCH_PATH = "/usr/sbin:/sbin"  # where Debian keeps what root runs


# As the units of `deploy/systemd` have it. The guard sees to itself. podman's service has none:
# what it starts would inherit it, and pods are to be killed before anything of the host.
OOM_SCORES = {
    "etcd": -900,
    "ozymandias": -800,
    "flanneld": -800,
    "keeper": -300,
    "ingress": -500,
    "dns": -500,
    "coredns": -500,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Program:
    name: str  # of the process and its log: etcd, podman, guard, n1, ..., ingress, dns
    command: tuple[str, ...]
    environment: Mapping[str, str]
    is_node: bool = False
    grace_seconds: float = 3.0  # between SIGTERM and SIGKILL
    start_seconds_max: float | None = None  # until it says that it is ready; None: it never does
    oom_score_adj: int = 0  # below 0: the kernel spares it when the host is out of memory


def programs(cluster: LocalCluster) -> tuple[Program, ...]:
    """Everything that runs for the cluster; what others wait for comes first."""
    environment = base_environment()
    first = str(cluster.config_file(cluster.nodes[0].name))
    return (
        Program(
            name="etcd",
            command=etcd_command(cluster),
            environment=environment,
            oom_score_adj=OOM_SCORES["etcd"],
        ),
        Program(
            name="podman",
            command=tuple(containers_conf.service_command(cluster.podman_socket)),
            environment=podman_environment(cluster),
        ),
        Program(name="guard", command=guard_command(first), environment=environment),
        *(
            Program(
                name=node.name,
                command=(*_entry("ozymandias"), "--config", str(cluster.config_file(node.name))),
                environment=environment,
                is_node=True,
                oom_score_adj=OOM_SCORES["ozymandias"],
            )
            for node in cluster.nodes
        ),
        *(
            Program(
                name=name,
                command=(*_entry(f"ozymandias-{name}"), "--config", first),
                environment=environment,
                oom_score_adj=OOM_SCORES[name],
            )
            for name in ("ingress", "dns")
        ),
    )


def guard_command(config_file: str) -> tuple[str, ...]:
    return (sys.executable, "-P", "-m", "ozymandias.daemon.guard", "--config", config_file)


def _entry(name: str) -> tuple[str, ...]:
    """The installed command beside this Python, whatever PATH says."""
    return (sys.executable, "-P", str(Path(sys.executable).with_name(name)))


def base_environment(outer: Mapping[str, str] = os.environ) -> dict[str, str]:
    """The caller's, less what would override the settings files; and with root's programs."""
    kept = {k: v for k, v in outer.items() if not k.startswith(("OZY_", "ETCD_"))}
    for name in ("NOTIFY_SOCKET", "CONTAINER_HOST", "LISTEN_FDS", "LISTEN_PID"):
        kept.pop(name, None)
    kept["PATH"] = f"{kept.get('PATH', os.defpath)}:{SEARCH_PATH}"
    return kept | {"GRPC_VERBOSITY": "NONE", "PYTHONUNBUFFERED": "1"}


def podman_environment(cluster: LocalCluster) -> dict[str, str]:
    return containers_conf.service_environment(cluster.containers_conf, base_environment())


def etcd_command(cluster: LocalCluster) -> tuple[str, ...]:
    client = f"http://127.0.0.1:{cluster.etcd_port}"
    peer = f"http://127.0.0.1:{cluster.etcd_peer_port}"
    return (
        "etcd",
        *("--name", "local", "--data-dir", str(cluster.etcd_dir)),
        *("--listen-client-urls", client, "--advertise-client-urls", client),
        *("--listen-peer-urls", peer, "--initial-advertise-peer-urls", peer),
        *("--initial-cluster", f"local={peer}"),
        *("--max-txn-ops", str(ETCD_OPERATIONS_MAX)),
        *("--auto-compaction-mode", "periodic", "--auto-compaction-retention", ETCD_COMPACTION),
        *("--quota-backend-bytes", str(ETCD_QUOTA_BYTES)),
        # A lone member has nobody to wait for before it leads.
        *("--heartbeat-interval", "50", "--election-timeout", "250"),
        *("--logger", "zap", "--log-level", "warn"),
    )


def require_programs() -> None:
    """A clear problem when something that must be installed is not."""
    path = f"{os.environ.get('PATH', os.defpath)}:{SEARCH_PATH}"
    packages = {"etcd": "etcd-server", "podman": "podman", "nft": "nftables", "mkfs.ext4": ""}
    missing = [name for name in packages if shutil.which(name, path=path) is None]
    if missing:
        install = " ".join(packages[name] or "e2fsprogs" for name in missing)
        raise ProblemError(
            LOCAL_CLUSTER(
                f"Not installed: {', '.join(missing)}.",
                hint=f"`make setup` installs what is missing; or `apt-get install {install}`.",
                missing=missing,
            )
        )


# Settings files ---------------------------------------------------------------------------------


def write_settings(cluster: LocalCluster) -> None:
    """containers.conf, and the file of each node."""
    for directory in (cluster.logs, cluster.etcd_dir, cluster.state_dir / "shared"):
        directory.mkdir(exist_ok=True, mode=0o700)
    containers_conf.write(cluster.containers_conf)
    for node in cluster.nodes:
        file = cluster.config_file(node.name)
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(render_toml(node_settings(cluster, node)))


Setting = str | int | tuple[str, ...]


def node_settings(cluster: LocalCluster, node: LocalNode) -> dict[str, dict[str, Setting]]:
    directory: Path = cluster.config_file(node.name).parent
    return {
        "node": {
            "name": node.name,
            "cluster": cluster.id,
            "address": cluster.gateway,  # of this machine, as pods see it
            "memory": cluster.memory,
            "disk": cluster.disk,
            "state_dir": str(directory),
            "run_dir": str(cluster.run_dir),  # of all nodes: one guard looks after them
            "shared_dir": str(cluster.state_dir / "shared"),
            "lease_ttl_seconds": LEASE_TTL_SECONDS,
            # The nodes share one machine; to each other they are machines of their own.
            "machine_id": f"{cluster.id}-{node.name}",
        },
        "etcd": {"endpoints": (f"127.0.0.1:{cluster.etcd_port}",)},
        "api": {
            "listen": f"127.0.0.1:{node.api_port}",
            "socket": str(cluster.run_dir / f"{node.name}.sock"),
            "token_file": str(cluster.token_hashes_file),
        },
        "podman": {
            "socket": str(cluster.podman_socket),
            "network": cluster.network,
            "subnet": cluster.subnet,
            "dns_server": cluster.gateway,
        },
        "ingress": {"listen": f"127.0.0.1:{cluster.ingress_port}"},
        "dns": {
            "listen": f"{cluster.gateway}:53",
            "host_listen": f"127.0.0.1:{cluster.dns_port}",
        },
    }


def render_toml(tables: Mapping[str, Mapping[str, Setting]]) -> str:
    lines = ["# Written by `ozy up`."]
    for table, settings in tables.items():
        lines.append(f"[{table}]")
        lines += [f"{key} = {_toml(value)}" for key, value in settings.items()]
    return "\n".join(lines) + "\n"


def _toml(value: Setting) -> str:
    if isinstance(value, tuple):
        return f"[{', '.join(_toml(item) for item in value)}]"
    if isinstance(value, int):
        return str(value).lower()  # true and false, too
    escaped = value.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'
