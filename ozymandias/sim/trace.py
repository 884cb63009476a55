"""What happened in a simulated life: told to people, and hashed to prove that a replay is exact.

Every entry has a time, a lane (a node, "etcd", "users", "") and a kind. Revisions of the store are
kept as they are and put in words only when somebody wants to read them. The fingerprint covers
every entry and every byte that was written to the store.
"""

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from ozymandias.ports import Event
from ozymandias.store import codec, keys

FAULT, HEAL, COMMIT, POD, USER, VIOLATION, NOTE = (
    *("fault", "heal", "commit", "pod", "user", "violation", "note"),
)
QUIET_PODS = frozenset(  # not worth a line each
    {"passed", "failed", "create", "asked to start", "asked to stop"}
)


@dataclass(frozen=True, slots=True)
class Entry:
    time: float
    lane: str
    kind: str
    text: str

    def __str__(self) -> str:
        return f"{self.time:9.3f}  {self.lane:6} {self.text}"


@dataclass(frozen=True, slots=True)
class Revision:
    """A revision of the store, and who made it."""

    time: float
    number: int
    actor: str
    events: Sequence[Event]

    def entry(self) -> Entry:
        text = f"r{self.number} {describe(self.events)}"
        return Entry(self.time, self.actor or "etcd", COMMIT, text)


class Trace:
    def __init__(self) -> None:
        self._entries: list[Entry | Revision] = []
        self._hash = hashlib.sha256()

    def add(self, time: float, lane: str, kind: str, text: str) -> None:
        entry = Entry(time, lane, kind, text)
        self._entries.append(entry)
        self._hash.update(f"{time!r} {lane} {kind} {text}\n".encode())

    def add_revision(self, time: float, number: int, actor: str, events: Sequence[Event]) -> None:
        self._entries.append(Revision(time, number, actor, events))
        self._hash.update(f"{time!r} {actor} {number}\n".encode())
        for event in events:
            self._hash.update(event.kv.key)
            self._hash.update(event.kv.value)

    @property
    def fingerprint(self) -> str:
        return self._hash.hexdigest()[:16]

    def entries(self) -> Iterator[Entry]:
        for entry in self._entries:
            yield entry if isinstance(entry, Entry) else entry.entry()

    def story(self) -> tuple[Entry, ...]:
        """Without what is written about what is seen: events and repeated statuses."""
        return tuple(e for e in self.entries() if e.kind != COMMIT or not _is_dull(e.text))


def _is_dull(text: str) -> bool:
    return text.endswith((" events", " nothing of ours"))


def describe(events: Sequence[Event]) -> str:
    """A revision in words: what was written of what."""
    parts = [part for event in events if (part := _describe_one(event))]
    if parts:
        return ", ".join(parts)
    is_log = all(e.kv.key.startswith(keys.EVENTS) for e in events)
    return "events" if is_log else "nothing of ours"


def _describe_one(event: Event) -> str:
    key = event.kv.key
    for prefix, name in (
        (keys.ASSIGNMENTS, "assignment"),
        (keys.NODES, "node"),
        (keys.JOBS, "job"),
        (keys.VERSIONS, "version"),
        (keys.STATUS, "status"),
        (keys.SKYDNS, "name"),
    ):
        if key.startswith(prefix):
            rest = key[len(prefix) :].decode(errors="replace").replace("default/", "")
            return f"{name} {rest} {'gone' if event.deleted else _value(name, event.kv.value)}"
    return ""


def _value(name: str, value: bytes) -> str:
    try:
        if name == "assignment":
            return " ".join(
                f"[{g.slots} v{g.version}.{g.generation} {g.state}]"
                for g in codec.decode_groups(value)
            )
        if name == "status":
            found = codec.decode_statuses(value)
            return " ".join(f"{slot}={status.state}" for slot, status in found.items())
    except ValueError:
        return "unreadable"
    return "written"
