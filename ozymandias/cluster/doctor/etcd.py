"""The store: who of its members answers, their versions, alarms, agreement and clocks; its records.

The client is that of the daemon, with the daemon's settings, so that what works here works there.
"""

import asyncio
import http.client
import ssl
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from email.utils import parsedate_to_datetime
from typing import TYPE_CHECKING

from ozymandias.cluster.doctor.check import Check, dotted, fail, ok, warn
from ozymandias.daemon.config import EtcdConfig
from ozymandias.model.job import JobKey, PullPolicy
from ozymandias.model.node import Node
from ozymandias.model.units import counted
from ozymandias.ports import StoreError
from ozymandias.problems import ProblemError

if TYPE_CHECKING:
    from ozymandias.store.etcd import EtcdStore, MemberStatus

START = "Start it (`systemctl start etcd`), and check [etcd] endpoints and the firewall."
RECORDS_SECONDS_MAX = 12.0
CLOCK_WARN_SECONDS = 5.0
CLOCK_FAIL_SECONDS = 300.0
DATE_SECONDS_MAX = 2.0
SCHEDULERS_MIN = 3  # of which one may be lost while another is looked after
SIZE_WARN_BYTES = int(1.5 * 2**30)  # etcd's own limit is 2 GiB unless it was raised

# (fixed in, what happens before): the newest of each line that matters to us.
FIXES: tuple[tuple[tuple[tuple[int, ...], ...], str], ...] = (
    (((3, 4, 25), (3, 5, 8)), "a watch can go back in time after a snapshot"),
    (((3, 4, 31), (3, 5, 13)), "a stuck former leader can revoke live leases"),
    (((3, 4, 36), (3, 5, 18)), "a watch can miss a deletion after compaction"),
    (((3, 4, 38), (3, 5, 23)), "a keep-alive can succeed for a revoked lease"),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Records:
    """What the store says about nodes and jobs."""

    cluster: str  # its id
    nodes: tuple[Node, ...]
    assigned: dict[str, int]  # node -> how many instances it holds
    images: dict[str, tuple[PullPolicy, tuple[JobKey, ...]]]


def version(name: str, found: tuple[int, ...]) -> Check:
    text = dotted(found)
    if (3, 5, 0) <= found <= (3, 5, 2):
        return fail(
            name,
            f"version {text} can lose agreement after a crash",
            "Use 3.5.33 or 3.6.14, or later ones.",
        )
    if found < (3, 4):
        return fail(name, f"version {text} is too old", "Use 3.5.33 or 3.6.14, or later ones.")
    if found >= (3, 6, 14) or (3, 5, 33) <= found < (3, 6):
        return ok(name, f"version {text}")
    known = [
        what
        for fixed, what in FIXES
        if not any(found[:2] == f[:2] and found >= f for f in fixed) and found < (3, 6)
    ]
    what = f": {'; '.join(known)}" if known else ""
    return warn(
        name,
        f"version {text} serves for trying out{what}",
        "In production use 3.5.33 or 3.6.14, or later ones.",
    )


def examine(config: EtcdConfig, *, start: str = START) -> tuple[list[Check], Records | None]:
    """Checks of the members; the records when the store can be read at all."""
    try:
        return asyncio.run(_examine(config, start))
    except ProblemError as error:
        problem = error.problem
        return [fail("etcd", problem.detail, problem.hint or "Check [etcd] of the settings.")], None


async def _examine(config: EtcdConfig, start: str) -> tuple[list[Check], Records | None]:
    from ozymandias.daemon.connect import connect_store  # brings grpc, which takes its time

    store = connect_store(config)
    try:
        members = await store.status()
        checks = list(judge(members, start))
        dates = await asyncio.gather(
            *(asyncio.to_thread(_date, m.endpoint, config) for m in members if not m.problem)
        )
        answered = [m.endpoint for m in members if not m.problem]
        for endpoint, date in zip(answered, dates, strict=True):
            checks += clock(f"clock of etcd {endpoint}", date, time.time())
        if not any(m.leader_id for m in members):
            return checks, None
        try:
            async with asyncio.timeout(RECORDS_SECONDS_MAX):
                return checks, await _records(store)
        except (StoreError, TimeoutError) as error:
            remedy = "Check user, password or certificate in [etcd], and that a majority runs."
            return [*checks, fail("etcd", f"can't be read: {error}", remedy)], None
    finally:
        await store.aclose()


def judge(members: Sequence["MemberStatus"], start: str = START) -> Iterator[Check]:
    """Each member, then whether there are enough of them; `start` brings them back."""
    for member in members:
        yield from _member(member)
    silent = [m for m in members if m.problem and not _knows_no_leader(m)]
    leaderless = [m for m in members if _knows_no_leader(m)]
    if len(silent) == len(members):
        yield fail("etcd", "no member answers", start)
    elif leaderless and not any(m.leader_id for m in members):
        of = counted(len(members), "member")
        yield fail(
            "etcd quorum",
            f"{len(members) - len(silent)} of {of} answer and know no leader",
            "Bring the others back: a majority must run. Pods and routes stay as they are.",
        )


def _knows_no_leader(member: "MemberStatus") -> bool:
    # It refuses even to tell its status when asked by somebody who wants a leader behind it.
    return "no leader" in member.problem or (not member.problem and not member.leader_id)


def _member(member: "MemberStatus") -> Iterator[Check]:
    name = f"etcd {member.endpoint}"
    if member.problem:
        if not _knows_no_leader(member):
            remedy = "`systemctl status etcd` there; the address must be reachable from here."
            yield warn(name, f"does not answer: {member.problem}", remedy)
        return
    yield version(name, tuple(int(p) for p in member.version.split(".") if p.isdigit()))
    if any("NOSPACE" in alarm for alarm in member.alarms):
        yield fail(
            name,
            "alarm NOSPACE: its quota is used up and it takes no more writes",
            "Raise --quota-backend-bytes or `etcdctl compact` and `etcdctl defrag`;"
            " then `etcdctl alarm disarm`.",
        )
    elif member.alarms:
        detail = f"alarm: {', '.join(member.alarms)}"
        yield fail(name, detail, "`etcdctl alarm list`; a corrupt member must be replaced.")
    elif member.db_size_bytes > SIZE_WARN_BYTES:
        detail = f"its file is {member.db_size_bytes / 2**30:.1f} GiB large; the quota is near"
        yield warn(name, detail, "`etcdctl defrag`, and let it compact: see the drop-in for etcd.")


# Clocks -------------------------------------------------------------------------------------------


def _date(endpoint: str, config: EtcdConfig) -> str:
    """The Date that its HTTP side tells, "" when it has none: a clock to compare ours with."""
    host = endpoint.partition("://")[2] or endpoint
    connection: http.client.HTTPConnection
    try:
        if config.ca_file and not endpoint.startswith("http://"):
            context = ssl.create_default_context(cafile=config.ca_file)
            if config.cert_file:
                context.load_cert_chain(config.cert_file, config.key_file or None)
            connection = http.client.HTTPSConnection(
                host, timeout=DATE_SECONDS_MAX, context=context
            )
        else:
            connection = http.client.HTTPConnection(host, timeout=DATE_SECONDS_MAX)
        try:
            connection.request("GET", "/version")
            return connection.getresponse().headers.get("Date", "")
        finally:
            connection.close()
    except (OSError, http.client.HTTPException, ssl.SSLError):
        return ""


def clock(name: str, date: str, now: float) -> Iterator[Check]:
    """Nothing when they agree, or when nothing is known."""
    try:
        there = parsedate_to_datetime(date).timestamp()
    except (ValueError, TypeError):
        return
    apart = abs(now - there)
    if apart < CLOCK_WARN_SECONDS:
        return
    how = f"{apart:.0f} s {'behind' if there < now else 'ahead of'} this machine's"
    remedy = "Let chrony or systemd-timesyncd keep the clock of both; `timedatectl` shows it."
    yield (fail if apart > CLOCK_FAIL_SECONDS else warn)(name, how, remedy)


# Records ------------------------------------------------------------------------------------------


async def _records(store: "EtcdStore") -> Records:
    """By the mirror's own reading, so that what it leaves out is left out here, too."""
    from ozymandias.store import keys
    from ozymandias.store.mirror import Mirror

    await store.get(keys.FORMAT)  # a refusal is told here; the mirror would ask again for ever
    mirror = Mirror(store)
    async with asyncio.TaskGroup() as group:
        following = group.create_task(mirror.run())
        await mirror.changed(0)
        snapshot = mirror.snapshot()
        following.cancel()
    assigned: dict[str, int] = {}
    for instance in snapshot.instances():
        assigned[instance.node] = assigned.get(instance.node, 0) + 1
    images: dict[str, tuple[PullPolicy, tuple[JobKey, ...]]] = {}
    for key, record in snapshot.jobs.items():
        for container in record.current.job.containers if record.current else ():
            policy, jobs = images.get(container.image, (container.pull_policy, ()))
            images[container.image] = (policy, (*jobs, key))
    return Records(
        cluster=mirror.cluster,
        nodes=tuple(snapshot.nodes.values()),
        assigned=assigned,
        images=images,
    )


def schedulers(alive: Mapping[str, bool]) -> Iterator[Check]:
    """Whether enough of the nodes that are there schedule, where some of them do not."""
    if not alive or all(alive.values()):
        return
    names = sorted(name for name, schedules in alive.items() if schedules)
    remedy = (
        "Set `schedules = true` under [node] of three nodes or more, and restart their daemons."
    )
    if not names:
        yield fail("scheduling", "no node that is there schedules: nothing is placed", remedy)
    elif len(names) < SCHEDULERS_MIN:
        of = counted(len(alive), "node")
        detail = f"only {' and '.join(names)} of {of}: when lost, nothing is placed"
        yield warn("scheduling", detail, remedy)
    else:
        yield ok("scheduling", f"{len(names)} of {counted(len(alive), 'node')} schedule")


def nodes(records: Records) -> Iterator[Check]:
    """Every node that has ever joined: here, degraded, or gone with what it held."""
    yield from schedulers({n.name: n.presence.schedules for n in records.nodes if n.presence})
    for node in sorted(records.nodes, key=lambda node: node.name):
        name = f"node {node.name}"
        held = records.assigned.get(node.name, 0)
        if node.presence is None:
            holding = f" and holds {counted(held, 'instance')}" if held else ""
            yield warn(
                name,
                f"lost: its lease has run out{holding}",
                "Start it again; what it held is placed elsewhere as far as there is room.",
            )
        elif node.presence.degraded:
            yield warn(
                name,
                f"degraded: {node.presence.degraded}",
                f"It takes no new work until that is put right; `ozy doctor` on {node.name}.",
            )
        else:
            yield ok(name, f"alive at {node.presence.address}, {counted(held, 'instance')}")
