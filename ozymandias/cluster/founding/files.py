"""The files of a host, as text: settings of the daemon, of etcd, flannel and CoreDNS, units.

All of them follow from the host's record and can be written again at any time; what an
administrator adds belongs into the record's own options or into systemd's drop-ins. Certificates,
keys and tokens are not here: those are made once (`credentials.py`).
"""

import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from ozymandias.cluster import install
from ozymandias.cluster.founding import services
from ozymandias.cluster.founding.record import API_PORT, HostRecord, Places
from ozymandias.cluster.programs import Setting, render_toml
from ozymandias.edge import corefile
from ozymandias.runtime import containers_conf

DNS_PORT = 53


@dataclass(frozen=True, slots=True, kw_only=True)
class Text:
    """A file as it shall be."""

    path: Path
    text: str
    mode: int = 0o644
    group: str = ""


def texts(record: HostRecord, places: Places) -> tuple[Text, ...]:
    """Everything that can be derived, in no order."""
    found = [
        Text(path=places.toml, text=_toml(record, places), mode=0o640, group=install.GROUP),
        Text(
            path=places.containers_conf,
            text=containers_conf.render(containers_conf.decide(containers_conf.gather())),
        ),
    ]
    if record.part == "store":
        values = services.etcd_environment(record, places)
        found.append(Text(path=places.settings / "etcd.env", text=_environment(values)))
    if record.cluster.network == "flannel":
        values = services.flannel_environment(record, places)
        found.append(Text(path=places.settings / "flanneld.env", text=_environment(values)))
    if record.cluster.dns == "coredns":
        text = _corefile(record, places)
        found.append(Text(path=places.corefile, text=text, mode=0o640, group=install.GROUP))
    if places.has_systemd:
        bin_dir = Path(sys.executable).absolute().parent
        units = services.unit_files(record, places, bin_dir)
        found += [Text(path=path, text=text) for path, text in units.items()]
    return tuple(found)


def write(text: Text, places: Places) -> bool:
    """Whole or not at all; whether anything was to be changed."""
    try:
        if text.path.read_text() == text.text:
            return False
    except OSError:
        pass
    text.path.parent.mkdir(parents=True, exist_ok=True)
    draft = text.path.with_name(f".{text.path.name}.new")
    descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with os.fdopen(descriptor, "w") as stream:
        stream.write(text.text)
        stream.flush()
        os.fsync(stream.fileno())
    install.own(draft, text.mode, text.group, places.root)
    draft.replace(text.path)
    return True


def _environment(values: Mapping[str, str]) -> str:
    lines = [f'{key}="{value}"' for key, value in values.items()]
    return "\n".join(["# Written by `ozy cluster`.", *lines]) + "\n"


def _toml(record: HostRecord, places: Places) -> str:
    tables = _tables(record, places)
    if record.labels:
        # Keys may have dots and slashes, which mean something to TOML.
        tables["node.labels"] = {f'"{key}"': value for key, value in record.labels.items()}
    return render_toml(tables).replace("`ozy up`", "`ozy cluster`")


def _tables(record: HostRecord, places: Places) -> dict[str, dict[str, Setting]]:
    cluster = record.cluster
    node: dict[str, Setting] = {
        "name": record.name,
        "cluster": cluster.id,
        "address": record.address,
        "state_dir": str(places.state),
        "shared_dir": str(places.state / "shared"),
        "run_dir": str(places.run),
        "lease_ttl_seconds": cluster.lease_ttl_seconds,
    }
    chosen = {"machine_id": record.machine_id, "memory": record.memory, "disk": record.disk}
    node |= {key: value for key, value in chosen.items() if value}
    return {
        "node": node,
        "etcd": {
            "endpoints": record.endpoints,
            "ca_file": str(places.authority_cert),
            "cert_file": str(places.cert("client")),
            "key_file": str(places.key("client")),
        },
        "api": {
            "listen": f"{record.address}:{API_PORT}",
            "socket": str(places.api_socket),
            "token_file": str(places.token_hashes),
            "cert_file": str(places.cert("host")),
            "key_file": str(places.key("host")),
            "ca_file": str(places.authority_cert),
        },
        "podman": {
            "socket": record.podman_socket or str(places.podman_socket),
            "network_kind": cluster.network,
            "flannel_subnet_file": str(places.flannel_subnet),
            "dns_server": record.address,
        },
        "names": {"domain": cluster.domain, "ingress_domain": cluster.ingress_domain},
        "ingress": {"listen": record.ingress_listen},
        "dns": {"listen": f"{record.address}:{DNS_PORT}"},
    }


def _corefile(record: HostRecord, places: Places) -> str:
    return corefile.render(
        corefile.Corefile(
            endpoints=record.endpoints,
            domain=record.cluster.domain,
            listen=(record.address,),
            ca_file=str(places.authority_cert),
            cert_file=str(places.cert("client")),
            key_file=str(places.key("client")),
        )
    )
