"""The Network port over podman: one bridge for the pods of this machine.

The network carries the cluster's label. One of the same name that does not is somebody else's and
is refused, as is a subnet that overlaps with another network's. podman's own DNS is off: names are
answered by the cluster's. netavark makes the bridge with the first pod and removes it with the
last, so the gateway's address comes and goes: whoever binds to it must be ready for that.
"""

import ipaddress
from pathlib import Path
from typing import Any

from ozymandias.ports import NetworkFailed, PodNetwork, RuntimeFailed
from ozymandias.runtime.podman_api import DEADLINE_SECONDS, PodmanApi, Refused, segment
from ozymandias.runtime.podspec import CLUSTER


class PodmanNetwork:
    def __init__(
        self,
        *,
        socket: Path,
        cluster: str,
        name: str,
        subnet: str,
        deadline_seconds: float = DEADLINE_SECONDS,
    ) -> None:
        self._api = PodmanApi(socket, deadline_seconds=deadline_seconds)
        self._cluster = cluster
        self._name = name
        self._subnet = subnet

    async def ensure(self) -> PodNetwork:
        try:
            return await self._ensure()
        except RuntimeFailed as error:
            raise NetworkFailed(f"network {self._name}: {error}") from error

    async def remove(self) -> None:
        """Remove the network if it is the cluster's own; fine if it is absent."""
        try:
            found = await self._find()
            if found is not None and self._is_ours(found):
                path = f"/networks/{segment(self._name)}"
                await self._api.call("DELETE", path, accept=(404,))
        except RuntimeFailed as error:
            raise NetworkFailed(f"network {self._name}: {error}") from error

    async def aclose(self) -> None:
        await self._api.aclose()

    async def _ensure(self) -> PodNetwork:
        wanted = self._wanted()
        found = await self._find()
        if found is None:
            await self._refuse_overlap(wanted)
            found = await self._create(wanted)
        if not self._is_ours(found):
            raise NetworkFailed(
                f"network {self._name} belongs to somebody else; choose another name"
            )
        if wanted not in _subnets(found):
            is_now = ", ".join(map(str, _subnets(found))) or "none"
            raise NetworkFailed(f"network {self._name} has subnet {is_now}, not {wanted}")
        return PodNetwork(name=self._name, subnet=str(wanted), gateway=str(_gateway(wanted)))

    def _wanted(self) -> ipaddress.IPv4Network:
        try:
            wanted = ipaddress.IPv4Network(self._subnet)
        except ValueError as error:
            raise NetworkFailed(f"{self._subnet!r} is not a subnet: {error}") from error
        if wanted.prefixlen > 30:
            raise NetworkFailed(f"subnet {wanted} has no room for pods")
        return wanted

    async def _find(self) -> dict[str, Any] | None:
        path = f"/networks/{segment(self._name)}/json"
        status, found = await self._api.call("GET", path, accept=(404,))
        if isinstance(found, list):
            found = found[0] if found else None
        return found if status != 404 and isinstance(found, dict) else None

    async def _refuse_overlap(self, wanted: ipaddress.IPv4Network) -> None:
        _, networks = await self._api.call("GET", "/networks/json")
        # Another daemon of this machine may have made our own one meanwhile.
        for network in (n for n in networks or () if n.get("name") != self._name):
            for subnet in _subnets(network):
                if subnet.overlaps(wanted):
                    raise NetworkFailed(
                        f"subnet {wanted} overlaps with {subnet} of podman network"
                        f" {network['name']}; choose another subnet"
                    )

    async def _create(self, wanted: ipaddress.IPv4Network) -> dict[str, Any]:
        body = {
            "name": self._name,
            "driver": "bridge",
            "subnets": [{"subnet": str(wanted), "gateway": str(_gateway(wanted))}],
            "dns_enabled": False,
            "labels": {CLUSTER: self._cluster},
        }
        try:
            _, made = await self._api.call("POST", "/networks/create", body=body)
        except Refused as error:
            # Another daemon of this machine may have been quicker.
            made = await self._find()
            if made is None:
                raise NetworkFailed(f"network {self._name}: {error.message}") from error
        return dict(made)

    def _is_ours(self, network: dict[str, Any]) -> bool:
        return (network.get("labels") or {}).get(CLUSTER) == self._cluster


def _subnets(network: dict[str, Any]) -> list[ipaddress.IPv4Network]:
    texts = [s.get("subnet", "") for s in network.get("subnets") or ()]
    return [ipaddress.IPv4Network(t) for t in texts if t and ":" not in t]


def _gateway(subnet: ipaddress.IPv4Network) -> ipaddress.IPv4Address:
    return next(subnet.hosts())
