"""The Network port over flannel: pods of all hosts in one network, each host with a subnet of it.

flanneld leases the subnet and writes it to a file; here it becomes a podman network. podman itself
would refuse to make it (flannel's own interface has an address in it), so its file is written
directly, which podman reads again. A rule of the firewall, ours by its comment, comes before all
masquerading: pods see each other's own addresses, whichever host they are on.

Level-triggered: `ensure` makes right whatever is wrong, at the first start as after a changed
lease. Then every pod on the former subnet is cut off from other hosts, which send its traffic
elsewhere: its network is stopped, and the executor starts it again with an address of the new one.
flanneld may be away at any time: the subnet it wrote stays in force, and traffic flows.
"""

import contextlib
import hashlib
import ipaddress
import json
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from ozymandias.ports import NetworkFailed, PodNetwork, RuntimeFailed
from ozymandias.runtime.commands import run
from ozymandias.runtime.observation import is_running
from ozymandias.runtime.podman_api import DEADLINE_SECONDS, PodmanApi, filters, segment
from ozymandias.runtime.podspec import CLUSTER
from ozymandias.telemetry import log

SUBNET_FILE = Path("/run/flannel/subnet.env")
NETWORKS_DIR = Path("/etc/containers/networks")
COMMENT = "ozymandias: pods keep their address"
HOST_PORTS = "NETAVARK-HOSTPORT-MASQ"
COMMAND_SECONDS_MAX = 10.0
MTU_RANGE = range(576, 65536)


@dataclass(frozen=True, slots=True, kw_only=True)
class FlannelLease:
    network: ipaddress.IPv4Network  # of all hosts
    subnet: ipaddress.IPv4Network  # of this one
    gateway: ipaddress.IPv4Address
    mtu: int


def parse_lease(text: str) -> FlannelLease:
    """flanneld's subnet.env. ValueError in plain words when it is none."""
    values = dict(line.split("=", 1) for line in text.split() if "=" in line)
    missing = [k for k in ("FLANNEL_NETWORK", "FLANNEL_SUBNET", "FLANNEL_MTU") if not values.get(k)]
    if missing:
        raise ValueError(f"{', '.join(missing)} missing")
    network = ipaddress.IPv4Network(values["FLANNEL_NETWORK"].split(",")[0])
    gateway = ipaddress.IPv4Interface(values["FLANNEL_SUBNET"])
    if not gateway.network.subnet_of(network):
        raise ValueError(f"subnet {gateway.network} is not in network {network}")
    if gateway.network.prefixlen > 30:
        raise ValueError(f"subnet {gateway.network} has no room for pods")
    if not values["FLANNEL_MTU"].isdigit() or int(values["FLANNEL_MTU"]) not in MTU_RANGE:
        raise ValueError(f"{values['FLANNEL_MTU']!r} is not an MTU")
    return FlannelLease(
        network=network,
        subnet=gateway.network,
        gateway=gateway.ip,
        mtu=int(values["FLANNEL_MTU"]),
    )


def bridge_name(network: str) -> str:
    """Of the network's interface on the host; at most 15 characters."""
    return f"ozy-{hashlib.sha256(network.encode()).hexdigest()[:8]}"


def network_document(lease: FlannelLease, name: str, cluster: str) -> dict[str, Any]:
    """podman's (netavark's) description of the network, but for the time it was made."""
    return {
        "name": name,
        "id": hashlib.sha256(name.encode()).hexdigest(),
        "driver": "bridge",
        "network_interface": bridge_name(name),
        "subnets": [{"subnet": str(lease.subnet), "gateway": str(lease.gateway)}],
        "ipv6_enabled": False,
        "internal": False,
        "dns_enabled": False,
        "labels": {CLUSTER: cluster},
        "options": {"mtu": str(lease.mtu)},
        "ipam_options": {"driver": "host-local"},
    }


def is_same(found: Mapping[str, Any] | None, wanted: Mapping[str, Any]) -> bool:
    """When it was made does not matter."""
    return found is not None and {k: v for k, v in found.items() if k != "created"} == wanted


def rule(network: ipaddress.IPv4Network) -> list[str]:
    """Traffic between pods is accepted before anything could rewrite where it comes from."""
    pair = ["-s", str(network), "-d", str(network)]
    return ["POSTROUTING", *pair, "-m", "comment", "--comment", COMMENT, "-j", "ACCEPT"]


def stale_rules(listing: str, keep: ipaddress.IPv4Network | None) -> list[list[str]]:
    """Of `iptables -S`, ours for other networks (or all), as arguments that delete them."""
    found = []
    for line in listing.splitlines():
        words = line.split()
        if f'"{COMMENT}"' not in line or words[:2] != ["-A", "POSTROUTING"]:
            continue
        network = ipaddress.IPv4Network(words[words.index("-s") + 1])
        if network != keep:
            found.append(rule(network))
    return found


def is_in_front(listing: str, network: ipaddress.IPv4Network) -> bool:
    """Our rule is there, and nothing before it could rewrite pods' traffic.

    What netavark puts to the front is for host ports, and looks at packets that it marked only.
    """
    for line in listing.splitlines():
        if line.startswith("-A ") and not line.endswith(f"-j {HOST_PORTS}"):
            return f'"{COMMENT}"' in line and str(network) in line
    return False


class FlannelNetwork:
    def __init__(
        self,
        *,
        socket: Path,
        cluster: str,
        name: str,
        subnet_file: Path = SUBNET_FILE,
        networks_dir: Path = NETWORKS_DIR,
        deadline_seconds: float = DEADLINE_SECONDS,
    ) -> None:
        self._api = PodmanApi(socket, deadline_seconds=deadline_seconds)
        self._cluster = cluster
        self._name = name
        self._subnet_file = subnet_file
        self._file = networks_dir / f"{name}.json"

    def stamp(self) -> tuple[int, int] | None:
        """Changes when flanneld has written the subnet anew; None while it never has."""
        try:
            found = self._subnet_file.stat()
        except OSError:
            return None
        return found.st_ino, found.st_mtime_ns

    async def ensure(self) -> PodNetwork:
        lease = self._lease()
        wanted = network_document(lease, self._name, self._cluster)
        try:
            await self._keep_addresses(lease.network)
            found = self._written()
            if found is not None and (found.get("labels") or {}).get(CLUSTER) != self._cluster:
                raise NetworkFailed(
                    f"network {self._name} belongs to somebody else; choose another name"
                )
            await self._stop_strays(lease.subnet)
            if not is_same(found, wanted):
                if found is not None:
                    await self._remove_bridge()
                self._write(wanted)
                log("network.subnet", name=self._name, subnet=str(lease.subnet), mtu=lease.mtu)
                await self._stop_strays(lease.subnet)  # started meanwhile, by the former file
            await self._check_podman(lease)
        except (RuntimeFailed, OSError) as error:
            raise NetworkFailed(f"network {self._name}: {error}") from error
        return PodNetwork(name=self._name, subnet=str(lease.subnet), gateway=str(lease.gateway))

    async def remove(self) -> None:
        """On leaving: the network and the rule, if they are ours. Fine if they are absent."""
        try:
            for arguments in stale_rules(await _iptables("-S", "POSTROUTING"), None):
                await _iptables("-D", *arguments)
            found = self._written()
            if found is not None and (found.get("labels") or {}).get(CLUSTER) == self._cluster:
                path = f"/networks/{segment(self._name)}"
                await self._api.call("DELETE", path, accept=(404,))
                self._file.unlink(missing_ok=True)
        except (RuntimeFailed, OSError) as error:
            raise NetworkFailed(f"network {self._name}: {error}") from error

    async def aclose(self) -> None:
        await self._api.aclose()

    # ----------------------------------------------------------------------------------------------

    def _lease(self) -> FlannelLease:
        try:
            return parse_lease(self._subnet_file.read_text())
        except FileNotFoundError:
            raise NetworkFailed(
                f"flannel has given this host no subnet yet: {self._subnet_file} is not there;"
                " is flanneld running?"
            ) from None
        except (OSError, UnicodeDecodeError, ValueError) as error:
            raise NetworkFailed(f"{self._subnet_file}: {error}") from error

    async def _keep_addresses(self, network: ipaddress.IPv4Network) -> None:
        listing = await _iptables("-S", "POSTROUTING")
        for arguments in stale_rules(listing, network):
            await _iptables("-D", *arguments)
        if is_in_front(listing, network):
            return
        with contextlib.suppress(RuntimeFailed):  # it is there, but too late
            await _iptables("-D", *rule(network))
        await _iptables("-I", *rule(network))

    def _written(self) -> dict[str, Any] | None:
        try:
            found = json.loads(self._file.read_text())
        except FileNotFoundError:
            return None
        except ValueError:
            return {"labels": {CLUSTER: self._cluster}}  # half of one of ours: write it anew
        return found if isinstance(found, dict) else {}

    def _write(self, wanted: dict[str, Any]) -> None:
        """Whole or not at all; podman looks at the directory's time to see that it changed."""
        self._file.parent.mkdir(parents=True, exist_ok=True)
        fresh = self._file.with_suffix(".new")
        fresh.write_text(json.dumps(wanted | {"created": datetime.now(UTC).isoformat()}, indent=2))
        fresh.replace(self._file)

    async def _stop_strays(self, subnet: ipaddress.IPv4Network) -> None:
        """Pods with an address that is not of this subnet lose their network, to get another."""
        query = {"filters": filters(label=[f"{CLUSTER}={self._cluster}"])}
        _, containers = await self._api.call("GET", "/containers/json", query=query)
        for container in containers or ():
            if not container.get("IsInfra") or not is_running(container):
                continue
            path = f"/containers/{segment(container['Id'])}"
            status, found = await self._api.inspect(container["Id"])
            networks = (found or {}).get("NetworkSettings", {}).get("Networks") or {}
            address = (networks.get(self._name) or {}).get("IPAddress") if status != 404 else ""
            if address and ipaddress.IPv4Address(address) not in subnet:
                log(
                    "pod.network_stopped",
                    pod=str((container.get("Names") or [""])[0]),
                    reason=f"its address {address} is not in {subnet}, this host's subnet now",
                )
                await self._api.call(
                    "POST", f"{path}/stop", query={"timeout": 0}, accept=(304, 404)
                )

    async def _remove_bridge(self) -> None:
        """It has the former gateway's address; netavark makes it anew with the next pod."""
        bridge = bridge_name(self._name)
        if Path(f"/sys/class/net/{bridge}").exists():
            command = ["ip", "link", "delete", "dev", bridge]
            await run(command, deadline_seconds=COMMAND_SECONDS_MAX)

    async def _check_podman(self, lease: FlannelLease) -> None:
        path = f"/networks/{segment(self._name)}/json"
        status, found = await self._api.call("GET", path, accept=(404,))
        document = found[0] if isinstance(found, list) and found else found
        subnets = document.get("subnets") or () if isinstance(document, dict) else ()
        if status == 404 or str(lease.subnet) not in [s.get("subnet") for s in subnets]:
            raise NetworkFailed(f"podman does not see {self._file} yet")


async def _iptables(*arguments: str) -> str:
    command = ["iptables", "--wait", "5", "-t", "nat", *arguments]
    return (await run(command, deadline_seconds=COMMAND_SECONDS_MAX)).decode(errors="replace")
