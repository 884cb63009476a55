"""What runs on a host of a cluster: command lines and files, as an administrator would have them.

No TLS here: certificates are what `ozy cluster init` adds.
"""

import functools
import importlib.util
import json
import sys
from collections.abc import Sequence
from pathlib import Path

from ozymandias.cluster.programs import (
    ETCD_COMPACTION,
    ETCD_ELECTION_MILLISECONDS,
    ETCD_HEARTBEAT_MILLISECONDS,
    ETCD_OPERATIONS_MAX,
    ETCD_QUOTA_BYTES,
    Setting,
    render_toml,
)
from ozymandias.edge import corefile
from ozymandias.runtime import containers_conf
from tests.cluster.hosts.host import Host

DEPLOY = Path(__file__).resolve().parents[3] / "deploy"
OVERLAY = "10.78.0.0/16"
FLANNEL_KEY = "/coreos.com/network/config"
INGRESS_PORT = 8080
API_PORT = 7400
INGRESS_DOMAIN = "test"
TOML = "/etc/ozymandias/ozymandias.toml"
TOKEN = "ozy-00000000-for-tests-on-hosts-without-a-way-in"
# In the order in which a host starts them; each waits by itself for what it needs.
NAMES = ("etcd", "podman", "flanneld", "coredns", "guard", "daemon", "ingress")


@functools.cache
def built(name: str) -> Path:
    """A program of `make coredns flannel`."""
    file = DEPLOY / name / "build.py"
    spec = importlib.util.spec_from_file_location(f"{name}_build", file)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    found: Path = module.program()
    assert found.exists(), f"{name} is not built: run `make {name}`"
    return found


def flannel_network(backend: str = "vxlan") -> str:
    return json.dumps({"Network": OVERLAY, "SubnetLen": 24, "Backend": {"Type": backend}})


def endpoints(members: Sequence[Host], host: Host) -> list[str]:
    """All members of etcd, a host's own first."""
    ordered = sorted(members, key=lambda member: member is not host)
    return [f"http://{member.address}:2379" for member in ordered]


def command(name: str, host: Host, members: Sequence[Host]) -> list[str]:
    bin_dir = Path(sys.executable).parent
    match name:
        case "etcd":
            return etcd(host, members)
        case "podman":
            return containers_conf.service_command(Path("/run/podman/podman.sock"))
        case "flanneld":
            return [
                str(built("flannel")),
                f"-etcd-endpoints={','.join(endpoints(members, host))}",
                *("-iface=eth0", "-ip-masq", "-subnet-file=/run/flannel/subnet.env"),
            ]
        case "coredns":
            return [str(built("coredns")), "-quiet", "-conf", "/etc/ozymandias/Corefile"]
        case "guard":
            return [sys.executable, "-P", "-m", "ozymandias.daemon.guard", "--config", TOML]
        case "daemon":
            return [str(bin_dir / "ozymandias"), "--config", TOML]
        case "ingress":
            return [str(bin_dir / "ozymandias-ingress"), "--config", TOML]
    raise KeyError(name)


def etcd(host: Host, members: Sequence[Host]) -> list[str]:
    peer, client = f"http://{host.address}:2380", f"http://{host.address}:2379"
    return [
        *("nice", "-n", "-5", "etcd"),  # as its unit has it
        *(f"--name={host.name}", "--data-dir=/var/lib/ozymandias-etcd"),
        *(f"--listen-peer-urls={peer}", f"--initial-advertise-peer-urls={peer}"),
        *(f"--listen-client-urls={client},http://127.0.0.1:2379",),
        f"--advertise-client-urls={client}",
        "--initial-cluster=" + ",".join(f"{m.name}=http://{m.address}:2380" for m in members),
        *("--max-txn-ops", str(ETCD_OPERATIONS_MAX)),
        *("--auto-compaction-mode", "periodic", "--auto-compaction-retention", ETCD_COMPACTION),
        *("--quota-backend-bytes", str(ETCD_QUOTA_BYTES)),
        *("--heartbeat-interval", str(ETCD_HEARTBEAT_MILLISECONDS)),
        *("--election-timeout", str(ETCD_ELECTION_MILLISECONDS), "--pre-vote=true"),
        *("--logger", "zap", "--log-level", "warn"),
    ]


def write_files(host: Host, members: Sequence[Host], more: dict[str, dict[str, Setting]]) -> None:
    """Settings of podman, CoreDNS, daemon and ingress; `more` adds to the tables or overrides."""
    conf = containers_conf.render(containers_conf.decide(containers_conf.gather()))
    host.write("/etc/containers/containers.conf", conf)
    names = corefile.Corefile(
        endpoints=tuple(endpoints(members, host)),
        listen=(host.address, "127.0.0.1"),
        forwarders=(),
        metrics_listen="127.0.0.1:9153",
        health_listen="127.0.0.1:9154",
        ready_listen="127.0.0.1:9155",
    )
    host.write("/etc/ozymandias/Corefile", corefile.render(names))
    host.write("/etc/ozymandias/tokens", TOKEN + "\n", 0o600)
    tables = settings(host, members)
    for table, values in more.items():
        tables[table] = tables.get(table, {}) | values
    host.write(TOML, render_toml(tables))


def settings(host: Host, members: Sequence[Host]) -> dict[str, dict[str, Setting]]:
    return {
        "node": {
            "name": host.name,
            "address": host.address,
            "memory": "1G",
            "disk": "1G",
            "lease_ttl_seconds": 6,
        },
        "etcd": {
            "endpoints": tuple(e.removeprefix("http://") for e in endpoints(members, host)),
        },
        "api": {
            "listen": f"{host.address}:{API_PORT}",
            "token_file": "/etc/ozymandias/tokens",
        },
        "podman": {"network_kind": "flannel"},
        "names": {"ingress_domain": INGRESS_DOMAIN},
        "ingress": {"listen": f"0.0.0.0:{INGRESS_PORT}"},
    }
