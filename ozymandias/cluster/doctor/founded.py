"""A host of a founded cluster: certificates, its place in the store, its peers, the pod network.

Beside what `host.py` looks at on every host with a daemon. Each judgment takes facts and can be
read alone; `examine` gathers them.
"""

import asyncio
import json
import ssl
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote

from ozymandias.cluster import reach
from ozymandias.cluster.doctor import etcd, service
from ozymandias.cluster.doctor.check import Check, fail, ok, warn
from ozymandias.cluster.founding import credentials, knocking, registry, services
from ozymandias.cluster.founding.record import HostRecord, Places
from ozymandias.cluster.founding.running import runner
from ozymandias.cluster.founding.work import Work
from ozymandias.daemon.config import Config
from ozymandias.model.units import counted
from ozymandias.ports import StoreError
from ozymandias.problems import ProblemError
from ozymandias.store.etcd_admin import Member

DAYS_WARN = 30.0
PEER_SECONDS_MAX = 3.0
ADDRESSES_WARN = 16  # left of a host's subnet
REJOIN = "`ozy cluster join` with a new token renews them."


@dataclass(frozen=True, slots=True, kw_only=True)
class Shared:
    """What etcd knows beside nodes and jobs."""

    members: Sequence[Member]
    hosts: Sequence[str]
    flannel: Mapping[str, object]  # its configuration
    subnets: Mapping[str, str]  # "10.78.5.0-24" -> address of the host that has it


def examine(record: HostRecord, places: Places, config: Config) -> Iterator[Check]:
    yield from certificates(credentials.held(places, time.time()), time.time())
    yield from programs(record, places)
    shared = _shared(record, places)
    if shared is not None:
        yield from members(shared, record)
    if record.cluster.network == "flannel":
        yield from flannel(record, places, shared)
        yield from _addresses(Path(config.podman.socket), config.podman.network)
    if shared is not None:
        yield from _reached(record, places, shared)


# Judgments ----------------------------------------------------------------------------------------


def certificates(held: Sequence[credentials.Held], now: float) -> Iterator[Check]:
    for one in held:
        name = f"certificate {one.use}"
        if one.problem or one.seen is None:
            yield fail(
                name, f"no good: {one.problem}", f"`ozy cluster renew`; if refused, {REJOIN}"
            )
        elif one.seen.days_left(now) < DAYS_WARN:
            left = counted(round(one.seen.days_left(now)), "day")
            yield warn(
                name,
                f"expires in {left}: the keeper should have renewed it",
                "`ozy cluster renew` says what is in the way.",
            )
        else:
            yield ok(name, f"good for {counted(round(one.seen.days_left(now)), 'day')}")


def programs(record: HostRecord, places: Places) -> Iterator[Check]:
    """Installed, and running."""
    at = Work(record=record, places=places, runner=runner(places), say=lambda outcome, what: None)
    absent = {name for name in services.needed(record) if not services.find(name, record.bin_dirs)}
    for found in at.services():
        start = (
            f"`systemctl start {found.unit}`; `journalctl -u {found.unit}` says why it ended."
            if places.has_systemd
            else f"{places.logs / (found.name + '.log')} says why."
        )
        if found.name in absent:
            remedy = services.OTHERS[found.name][0]
            yield fail(found.name, "not installed", f"{remedy[0].upper()}{remedy[1:]}.")
        elif not at.runner.is_running(found):
            yield fail(found.name, f"does not run{_loses(found.name)}", start)


def _loses(name: str) -> str:
    return {
        "flanneld": ": pods keep their network, but other hosts' changes are not followed",
        "coredns": ": pods of this host find no names",
        "keeper": ": certificates are not renewed and nobody can join here",
    }.get(name, "")


def members(shared: Shared, record: HostRecord) -> Iterator[Check]:
    voters = [m for m in shared.members if not m.is_learner]
    unstarted = [m for m in shared.members if not m.is_started]
    if record.name not in shared.hosts:
        yield fail(
            "host",
            f"the cluster does not know {record.name} (any more)",
            "`ozy node leave --force` here, then `ozy cluster join` with a new token.",
        )
    if unstarted:
        where = ", ".join(url for m in unstarted for url in m.peer_urls)
        yield warn(
            "store members",
            f"one was added and never started: {where}",
            "Run `ozy cluster join` there again, or `ozy cluster remove NAME` here.",
        )
    if len(voters) % 2 == 0:
        yield warn(
            "store members",
            f"{len(voters)} have a vote, which is worth no more than {len(voters) - 1}",
            "A host is on its way in or out; if it stays so, `ozy cluster status`.",
        )
    else:
        yield ok("store members", f"{len(voters)} with a vote, {len(shared.members)} in all")


def flannel(record: HostRecord, places: Places, shared: Shared | None) -> Iterator[Check]:
    """This host's subnet, and whether there is one for the next host."""
    own = _own_subnet(places)
    capacity = _capacity(shared.flannel) if shared else 0
    taken = len(shared.subnets) if shared else 0
    wide = (
        "Found the cluster with a wider --pod-network or larger --pod-subnet-bits; hosts that are"
    )
    wide += " gone give theirs back a day later, or at once by `ozy cluster remove NAME`."
    if own is None and shared is not None and taken >= capacity > 0:
        yield fail("pod subnet", f"exhausted: all {capacity} subnets are taken", wide)
    elif own is None:
        yield fail(
            "pod subnet",
            f"flanneld has written no {places.flannel_subnet}: pods get no address here",
            "Start flanneld; its log says what it waits for.",
        )
    elif shared is not None and taken >= capacity > 0:
        yield warn("pod subnet", f"{own}, and none of {capacity} is left for another host", wide)
    else:
        yield ok("pod subnet", own)
    if shared is not None and not shared.flannel:
        yield fail(
            "pod network",
            "flannel's configuration is not in etcd",
            "`ozy cluster init` on the first host writes it again.",
        )


def addresses(subnet_size: int, used: int) -> Check:
    """Of this host's subnet, less network, gateway and broadcast."""
    left = max(0, subnet_size - 3 - used)
    detail = f"{left} {'address is' if left == 1 else 'addresses are'} left for pods of this host"
    if left == 0:
        return fail(
            "pod addresses",
            f"exhausted: {detail}",
            "Move work elsewhere (`ozy node cordon`); --pod-subnet-bits is set at founding.",
        )
    if left < ADDRESSES_WARN:
        return warn("pod addresses", detail, "Further pods will wait when there are none.")
    return ok("pod addresses", detail)


def peer(name: str, answer: reach.Answer | OSError, now: float) -> Iterator[Check]:
    """Another host's API: does it answer, and what time is it there?"""
    if isinstance(answer, OSError):
        yield fail(
            f"host {name}",
            f"not reached from here: {answer.strerror or answer}",
            "It is down, or its address, its firewall or the network between is not right.",
        )
        return
    yield ok(f"host {name}", "reached from here")
    yield from etcd.clock(f"clock of {name}", answer.date, now)


def reached(name: str, ports: Mapping[int, str], address: str) -> Check:
    """By the word of another host: whether it reaches this one."""
    closed = {port: why for port, why in ports.items() if why}
    if not closed:
        return ok(f"reached by {name}", f"at {address}")
    told = "; ".join(f"port {port}: {why}" for port, why in sorted(closed.items()))
    return fail(
        f"reached by {name}",
        f"not at {address}, {told}",
        "[node] address must be one that other hosts reach; look at the firewall of this host.",
    )


# Facts --------------------------------------------------------------------------------------------


def _shared(record: HostRecord, places: Places) -> Shared | None:
    try:
        return asyncio.run(_read_shared(record, places))
    except (StoreError, OSError, ProblemError, ValueError):
        return None  # the store's own checks say why


async def _read_shared(record: HostRecord, places: Places) -> Shared:
    at = Work(record=record, places=places, runner=runner(places), say=lambda outcome, what: None)
    async with at.store() as store, at.admin() as admin:
        config = await store.get(registry.FLANNEL_CONFIG)
        subnets = await store.range(registry.FLANNEL_SUBNETS)
        hosts = await registry.hosts(store)
        found = await admin.members()
    prefix = len(registry.FLANNEL_SUBNETS)
    return Shared(
        members=found,
        hosts=[host.name for host in hosts],
        flannel=json.loads(config.value) if config else {},
        subnets={
            kv.key[prefix:].decode(): str(json.loads(kv.value).get("PublicIP", ""))
            for kv in subnets.kvs
        },
    )


def _own_subnet(places: Places) -> str | None:
    try:
        lines = dict(
            line.split("=", 1)
            for line in places.flannel_subnet.read_text().splitlines()
            if "=" in line
        )
    except OSError:
        return None
    return lines.get("FLANNEL_SUBNET")


def _capacity(config: Mapping[str, object]) -> int:
    """How many hosts can have a subnet; flannel leaves the first one out."""
    try:
        bits = int(str(config["Network"]).partition("/")[2])
        return max(0, int(2 ** (int(str(config["SubnetLen"])) - bits)) - 1)
    except (KeyError, ValueError):
        return 0


def _addresses(podman: Path, network: str) -> Iterator[Check]:
    try:
        status, body = service.get(podman, f"{service.PREFIX}/networks/{quote(network)}/json")
        subnets = json.loads(body).get("subnets") or [] if status == 200 else []
        wanted = quote(json.dumps({"network": [network]}))
        _, listed = service.get(podman, f"{service.PREFIX}/containers/json?filters={wanted}")
        used = len(json.loads(listed))
        size = sum(2 ** (32 - int(str(s["subnet"]).partition("/")[2])) for s in subnets)
    except (OSError, ValueError, KeyError, TypeError):
        return
    if size:
        yield addresses(size, used)


def _reached(record: HostRecord, places: Places, shared: Shared) -> Iterator[Check]:
    """Other hosts asked, each for itself; those with a door are asked how they see this one."""
    hosts = asyncio.run(_others(record, places))
    context = ssl.create_default_context(cafile=str(places.authority_cert))
    doors = {
        url.partition("://")[2].rpartition(":")[0].strip("[]")
        for member in shared.members
        for url in member.peer_urls
    }
    for name, address in hosts.items():
        try:
            url = f"https://{address}:7400/healthz"
            answer: reach.Answer | OSError = reach.get(
                url, timeout=PEER_SECONDS_MAX, context=context
            )
        except OSError as error:
            answer = error
        yield from peer(name, answer, time.time())
        if address in doors and not isinstance(answer, OSError):
            try:
                ports = knocking.ask_reached(address, places)
            except ProblemError:
                continue
            yield reached(name, ports, record.address)


async def _others(record: HostRecord, places: Places) -> dict[str, str]:
    at = Work(record=record, places=places, runner=runner(places), say=lambda outcome, what: None)
    async with at.store() as store:
        return {h.name: h.address for h in await registry.hosts(store) if h.name != record.name}
