"""The pods' bridge is made once, is ours, and overlaps with nobody's."""

import asyncio
import ipaddress
import uuid

import pytest

from ozymandias.ports import NetworkFailed
from ozymandias.runtime.network import PodmanNetwork
from tests.integration.podman.conftest import Site


def network(site: Site, *, name: str = "", subnet: str = "", cluster: str = "") -> PodmanNetwork:
    return PodmanNetwork(
        socket=site.service.socket,
        cluster=cluster or site.cluster,
        name=name or site.network,
        subnet=subnet or site.subnet,
    )


async def test_ensure_is_idempotent(site: Site) -> None:
    """Asking twice gives the same network; its gateway is the first address."""
    made = network(site)
    first = await made.ensure()
    assert await made.ensure() == first
    assert first.gateway == str(ipaddress.IPv4Network(site.subnet)[1])
    text = site.service.podman("network", "inspect", site.network, "--format", "{{.DNSEnabled}}")
    assert text == "false"
    await made.aclose()


async def test_overlap_is_refused(site: Site) -> None:
    """A subnet that overlaps with another network's is refused, and nothing is made."""
    first = network(site)
    await first.ensure()
    await first.aclose()
    name = f"ozy-test-{uuid.uuid4().hex[:8]}"
    wider = str(ipaddress.IPv4Network(site.subnet).supernet(4))
    second = network(site, name=name, subnet=wider)
    with pytest.raises(NetworkFailed, match="overlaps"):
        await second.ensure()
    assert name not in site.service.podman("network", "ls", "--format", "{{.Name}}").split()
    await second.aclose()


async def test_foreign_network_is_refused_and_kept(site: Site) -> None:
    """A network of that name which is another cluster's is neither used nor removed."""
    mine = network(site)
    await mine.ensure()
    other = network(site, cluster="another")
    with pytest.raises(NetworkFailed, match="somebody else"):
        await other.ensure()
    await other.remove()
    assert site.network in site.service.podman("network", "ls", "--format", "{{.Name}}").split()
    await other.aclose()
    await mine.aclose()


@pytest.mark.parametrize("subnet", ["10.1.2.3/24", "nonsense", "10.213.0.0/31"])
async def test_bad_subnet_is_named(site: Site, subnet: str) -> None:
    """What is not a subnet, or has no room, is refused with its name."""
    bad = network(site, name="ozy-test-bad", subnet=subnet)
    with pytest.raises(NetworkFailed):
        await bad.ensure()
    await bad.aclose()


async def test_remove_is_complete_and_twice_is_fine(site: Site) -> None:
    """A removed network is gone, with nothing left, and may be removed again."""
    name = f"ozy-test-{uuid.uuid4().hex[:8]}"
    octet = 255 - int(site.subnet.split(".")[2])
    made = network(site, name=name, subnet=f"10.214.{octet}.0/24")
    await made.ensure()
    await made.remove()
    await made.remove()
    assert name not in site.service.podman("network", "ls", "--format", "{{.Name}}").split()
    await made.aclose()


async def test_daemons_that_begin_at_once_share_it(site: Site) -> None:
    """All nodes of one machine make the same network: whoever comes second does not mind."""
    name = f"ozy-test-{uuid.uuid4().hex[:8]}"
    octet = 255 - int(site.subnet.split(".")[2])
    daemons = [network(site, name=name, subnet=f"10.215.{octet}.0/24") for _ in range(6)]
    try:
        for _ in range(5):
            made = await asyncio.gather(*(daemon.ensure() for daemon in daemons))
            assert {each.name for each in made} == {name}
            await daemons[0].remove()
    finally:
        await daemons[0].remove()
        for daemon in daemons:
            await daemon.aclose()
