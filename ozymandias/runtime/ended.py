"""The last words of containers that have ended, kept on the node that ran them.

A bounded shelf: so many records and bytes in all, so many per instance, and the oldest go first; a
container that crashes all day does not push out what others left behind. On disk each record is
one file, written as a whole, whose name says whose it is and when it ended, so that finding needs
no index. The files are readable by root alone: logs hold secrets. Nothing is flushed to the disk:
last words are worth having, not worth waiting for.
"""

import asyncio
import hashlib
import json
import os
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Any, NamedTuple

from ozymandias.model.job import JobName, Namespace
from ozymandias.model.node import NodeName
from ozymandias.model.pod import PodId
from ozymandias.ports import EndedRun, LogLine
from ozymandias.telemetry import warn

RECORDS_MAX = 200
RECORDS_PER_INSTANCE_MAX = 10
BYTES_MAX = 32 * 2**20
FORMAT = 1
_SUFFIX, _DRAFT = ".json", ".draft"


class _Entry(NamedTuple):
    """One record as its file's name tells it; sorts by age."""

    ended_ms: int
    namespace: str
    job: str
    slot: int
    digest: str
    size_bytes: int = 0

    @property
    def file(self) -> str:
        parts = (f"{self.ended_ms:014d}", self.namespace, self.job, str(self.slot), self.digest)
        return ".".join(parts) + _SUFFIX

    def is_of(self, namespace: str, job: str, slot: int | None) -> bool:
        return (self.namespace, self.job) == (namespace, job) and slot in (None, self.slot)


def _entry_of(run: EndedRun, size_bytes: int) -> _Entry:
    pod = run.pod
    began = run.started_at or run.ended_at
    identity = f"{pod.name}/{run.container}/{began:.3f}"
    digest = hashlib.blake2b(identity.encode(), digest_size=8).hexdigest()
    ended_ms = max(0, round(run.ended_at * 1000))
    return _Entry(ended_ms, pod.namespace, pod.job, pod.slot, digest, size_bytes)


def _surplus(entries: Iterable[_Entry]) -> list[_Entry]:
    """What must go, the newest being kept."""
    gone, of_instance, count, size_bytes = [], Counter[tuple[str, str, int]](), 0, 0
    for entry in sorted(entries, reverse=True):
        instance = (entry.namespace, entry.job, entry.slot)
        fits = count < RECORDS_MAX and size_bytes + entry.size_bytes <= BYTES_MAX
        if fits and of_instance[instance] < RECORDS_PER_INSTANCE_MAX:
            of_instance[instance] += 1
            count += 1
            size_bytes += entry.size_bytes
        else:
            gone.append(entry)
    return gone


class EndedInMemory:
    """For a node that has no directory; they go with the daemon."""

    def __init__(self) -> None:
        self._kept: dict[_Entry, EndedRun] = {}

    async def keep(self, run: EndedRun) -> None:
        entry = _entry_of(run, len(_encoded(run)))
        if any(other.digest == entry.digest for other in self._kept):
            return
        self._kept[entry] = run
        for gone in _surplus(self._kept):
            del self._kept[gone]

    async def find(self, namespace: str, job: str, slot: int | None = None) -> tuple[EndedRun, ...]:
        found = sorted((e for e in self._kept if e.is_of(namespace, job, slot)), reverse=True)
        return tuple(self._kept[entry] for entry in found)


class EndedFiles:
    """In a directory of their own. Disks are slow: the work is done in a thread, one at a time."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._turn = asyncio.Lock()

    async def keep(self, run: EndedRun) -> None:
        async with self._turn:
            await asyncio.to_thread(self._keep, run)

    async def find(self, namespace: str, job: str, slot: int | None = None) -> tuple[EndedRun, ...]:
        return await asyncio.to_thread(self._find, namespace, job, slot)

    def _keep(self, run: EndedRun) -> None:
        self._directory.mkdir(parents=True, exist_ok=True, mode=0o700)
        data = _encoded(run)
        entry, entries = _entry_of(run, len(data)), self._entries()
        if any(other.digest == entry.digest for other in entries):
            return
        draft = self._directory / (entry.digest + _DRAFT)
        descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        try:
            with os.fdopen(descriptor, "wb") as opened:
                opened.write(data)
            draft.replace(self._directory / entry.file)
        except OSError:
            draft.unlink(missing_ok=True)
            raise
        for gone in _surplus([*entries, entry]):
            (self._directory / gone.file).unlink(missing_ok=True)

    def _find(self, namespace: str, job: str, slot: int | None) -> tuple[EndedRun, ...]:
        wanted = [e for e in self._entries() if e.is_of(namespace, job, slot)]
        found = (self._read(entry) for entry in sorted(wanted, reverse=True))
        return tuple(run for run in found if run is not None)

    def _read(self, entry: _Entry) -> EndedRun | None:
        try:
            return _decoded((self._directory / entry.file).read_bytes())
        except FileNotFoundError:
            return None  # it has just gone
        except (OSError, ValueError, KeyError, TypeError) as error:
            warn("ended.unreadable", file=entry.file, reason=str(error))
            return None

    def _entries(self) -> list[_Entry]:
        try:
            listed = list(os.scandir(self._directory))
        except FileNotFoundError:
            return []
        found = []
        for file in listed:
            parts = file.name.removesuffix(_SUFFIX).split(".")
            if not file.name.endswith(_SUFFIX) or len(parts) != 5:
                continue  # not ours to touch
            if parts[0].isdecimal() and parts[3].isdecimal():
                try:
                    size = file.stat().st_size
                except FileNotFoundError:
                    continue
                found.append(
                    _Entry(int(parts[0]), parts[1], parts[2], int(parts[3]), parts[4], size)
                )
        return found


def _encoded(run: EndedRun) -> bytes:
    document = {
        "format": FORMAT,
        "pod": list(run.pod),
        "container": run.container,
        "started_at": run.started_at,
        "ended_at": run.ended_at,
        "exit_code": run.exit_code,
        "oom_killed": run.oom_killed,
        "reason": run.reason,
        "lines": [[line.time, line.stream, line.text] for line in run.lines],
    }
    return json.dumps(document).encode()


def _decoded(data: bytes) -> EndedRun:
    document: dict[str, Any] = json.loads(data)
    if document["format"] != FORMAT:
        raise ValueError(f"format {document['format']} is not known")
    node, namespace, job, slot, uid, version, generation = document["pod"]
    container = str(document["container"])
    return EndedRun(
        pod=PodId(
            NodeName(node), Namespace(namespace), JobName(job), slot, uid, version, generation
        ),
        container=container,
        started_at=float(document["started_at"]),
        ended_at=float(document["ended_at"]),
        exit_code=document["exit_code"],
        oom_killed=bool(document["oom_killed"]),
        reason=str(document["reason"]),
        lines=tuple(
            LogLine(container=container, time=time, stream=stream, text=text)
            for time, stream, text in document["lines"]
        ),
    )
