"""The part of the store that concerns one node, for the mirror of a daemon that does not schedule.

Five hundred daemons that each watch everything would leave etcd time for little else. One that only
runs what it is given needs its own presence, ledger, load and assignments, the settings, and the
heads and versions of the jobs that are assigned to it.

These lie in several places, and a decision may rely on all of them being of one revision: whoever
changes a node's assignments rewrites its ledger in the same transaction, and whoever gives one of
its slots back compares that ledger. So they are not watched one by one. What is watched are single
keys that tell that something has changed (the ledger does so for every assignment), and then the
part is read as a whole, by one transaction. Versions never change, so those of a new assignment may
be read after it. What this daemon alone writes, its statuses and events, is read at the beginning
of each stretch of membership only, when it has to know what was said before.
"""

import asyncio
from collections.abc import AsyncGenerator, Iterable, Sequence

from ozymandias.model.job import JobKey
from ozymandias.model.node import NodeName
from ozymandias.ports import KV, ClusterChanged, Event, Get, Listing, Store, Unavailable
from ozymandias.store import codec, keys

RETRY_SECONDS = 0.5
PAUSE_SECONDS = 0.02  # between two readings; changes often come several at a time
PAUSE_SECONDS_EACH = 0.001  # more for every assignment: what is large is read less often

_Part = dict[bytes, KV]


class OwnPart:
    """Feeds a mirror. `run` keeps the watches, `mirror` is what the mirror reads."""

    def __init__(self, store: Store, node: NodeName) -> None:
        self._store = store
        self._node = node
        self._stale = asyncio.Event()
        self._read_at = 0.0
        self._part: _Part = {}  # presence, ledger, settings, assignments at the last reading
        self._jobs: dict[JobKey, _Part] = {}  # head and versions of each job that is followed
        self._known: frozenset[JobKey] = frozenset()  # to be followed beside what is assigned
        self._is_to_list = True
        self._listings = 0
        self._listed = asyncio.Event()

    async def run(self) -> None:
        """Notice that something has changed, until cancelled."""
        async with asyncio.TaskGroup() as group:
            own = (keys.ledger(self._node), keys.node(self._node), keys.load(self._node))
            for key in (*own, keys.SCHEDULING):
                group.create_task(self._watch(key))

    async def _watch(self, key: bytes) -> None:
        async for _ in self._store.mirror(key, alone=True):
            self._stale.set()

    async def know(self, jobs: Iterable[JobKey]) -> None:
        """Read everything anew, with these jobs; returns when the mirror has it."""
        self._known = frozenset(jobs)
        self._is_to_list = True
        self._stale.set()
        seen = self._listings
        while self._listings == seen or self._is_to_list:
            await self._listed.wait()

    async def mirror(self, prefix: bytes) -> AsyncGenerator[Listing | Sequence[Event], None]:
        """The whole part at first and whenever this node joins; then what has changed in it."""
        while True:
            self._stale.clear()
            try:
                item = await self._read()
            except (Unavailable, ClusterChanged):
                await asyncio.sleep(RETRY_SECONDS)
                continue
            if item:
                yield item
            if isinstance(item, Listing):
                self._listings += 1
                self._listed.set()
                self._listed = asyncio.Event()
            await self._stale.wait()
            now = asyncio.get_running_loop().time()
            pause = PAUSE_SECONDS + PAUSE_SECONDS_EACH * len(self._part)
            await asyncio.sleep(max(0.0, self._read_at + pause - now))

    async def _read(self) -> Listing | list[Event]:
        if self._is_to_list:
            return await self._list()
        revision, part = await self._get(self._gets())
        if _epoch(part, self._node) != _epoch(self._part, self._node):
            return await self._list()  # it has joined or was lost: what it said may be gone
        assigned = self._assigned(part)
        differences = _differences(self._part, part, revision)
        if not differences:
            return []
        # Last what was read first: it says up to which revision the part is known.
        events = [*await self._changed_jobs(assigned, part), *differences]
        self._part = part
        return events

    async def _list(self) -> Listing:
        """Everything at one revision, with the jobs of all that is assigned at that revision."""
        self._is_to_list = False
        jobs = set(self._known | self._jobs.keys())
        try:
            while True:
                about = [get for job in sorted(jobs) for get in _job_gets(job)]
                revision, found = await self._get((*self._gets(), *self._said(), *about))
                assigned = self._assigned(found)
                if assigned <= jobs:
                    break
                jobs = set(self._known | assigned)
        except BaseException:
            self._is_to_list = True
            raise
        self._jobs = {job: _of_job(found, job) for job in self._known | assigned}
        kept = {key for part in self._jobs.values() for key in part}
        about_jobs = (keys.JOBS, keys.VERSIONS)
        found = {k: kv for k, kv in found.items() if k in kept or not k.startswith(about_jobs)}
        said = (keys.EVENTS, keys.STATUS, *about_jobs)
        self._part = {k: kv for k, kv in found.items() if not k.startswith(said)}
        return Listing(revision, tuple(found.values()))

    async def _changed_jobs(self, assigned: set[JobKey], part: _Part) -> list[Event]:
        """Jobs that came or have another version here are read, those that went are forgotten."""
        events: list[Event] = []
        followed = assigned | self._known
        for job in sorted(self._jobs.keys() - followed):
            gone = self._jobs.pop(job)
            events += (_deleted(key, kv.mod_revision) for key, kv in gone.items())
        unread = sorted(job for job in assigned if not self._has_versions(job, part))
        if unread:
            _, found = await self._get([get for job in unread for get in _job_gets(job)])
            for job in unread:
                fresh = _of_job(found, job)
                events += _differences(self._jobs.get(job, {}), fresh, 0)
                self._jobs[job] = fresh
        return events

    def _has_versions(self, job: JobKey, part: _Part) -> bool:
        known = self._jobs.get(job, {})
        kv = part[keys.assignment(self._node, job)]
        try:
            needed = {group.version for group in codec.decode_groups(kv.value)}
        except codec.Undecodable:
            return True  # the mirror says so; there is nothing to be read for it
        return all(keys.version(job, number) in known for number in needed)

    # Reading ------------------------------------------------------------------------------------

    def _gets(self) -> tuple[Get, ...]:
        single = (keys.FORMAT, keys.SCHEDULING)
        own = (keys.node(self._node), keys.ledger(self._node), keys.load(self._node))
        return (*map(Get, (*single, *own)), _under(keys.assignments(self._node)))

    def _said(self) -> tuple[Get, ...]:
        return _under(keys.statuses(self._node)), _under(keys.events(self._node))

    async def _get(self, gets: Sequence[Get]) -> tuple[int, _Part]:
        self._read_at = asyncio.get_running_loop().time()
        result = await self._store.txn((), gets)
        return result.revision, {kv.key: kv for kvs in result.results for kv in kvs}

    def _assigned(self, part: _Part) -> set[JobKey]:
        prefix, found = keys.assignments(self._node), set[JobKey]()
        for key in part:
            if key.startswith(prefix):
                try:
                    namespace, name = keys.parts(key, prefix)
                except ValueError:
                    continue  # a stray key: the mirror says so
                found.add(keys.job_key(namespace, name))
        return found


def _under(prefix: bytes) -> Get:
    return Get(prefix, keys.prefix_end(prefix))


def _job_gets(job: JobKey) -> tuple[Get, Get]:
    return Get(keys.job(job)), _under(keys.versions(job))


def _of_job(found: _Part, job: JobKey) -> _Part:
    head, versions = keys.job(job), keys.versions(job)
    return {key: kv for key, kv in found.items() if key == head or key.startswith(versions)}


def _epoch(part: _Part, node: NodeName) -> tuple[int, int]:
    record = part.get(keys.node(node))
    return (record.create_revision, record.lease) if record else (0, 0)


def _differences(before: _Part, after: _Part, revision: int) -> list[Event]:
    """What makes the one of the other, by revision; what is gone was gone at ``revision``."""
    events = [
        Event(kv, deleted=False)
        for key, kv in after.items()
        if key not in before or before[key].mod_revision != kv.mod_revision
    ]
    events += (_deleted(key, revision or before[key].mod_revision) for key in before.keys() - after)
    return sorted(events, key=lambda event: event.kv.mod_revision)


def _deleted(key: bytes, revision: int) -> Event:
    return Event(KV(key, b"", 0, revision, 0, 0), deleted=True)
