"""Values <-> bytes: JSON by msgspec over the frozen dataclasses of `model/`.

A value that can't be read (a newer schema, a stray write) raises Undecodable; the mirror leaves
that one object out and says so, and the rest of the cluster goes on.

A newer daemon may have written members that this one has no field for. Whoever rewrites a record
keeps them: `decode_known` gives them beside the value, `encode` takes them back. What this version
wrote is told by its bytes, so nearly always that costs one encoding and no look at the members; of
the assignments of a job it costs one for all of them (`decode_known_groups`).
"""

from collections.abc import Mapping
from functools import lru_cache
from sys import intern
from typing import Any, TypeVar

import msgspec
from msgspec.structs import force_setattr, replace

from ozymandias.model.decision import Decision
from ozymandias.model.event import EventRecord
from ozymandias.model.instance import Group, InstanceStatus, Slots
from ozymandias.model.job import JobHead, JobVersion
from ozymandias.model.node import Demand, Ledger, Load, Presence
from ozymandias.model.settings import Settings

FORMAT_VERSION = 1

T = TypeVar("T")


class Undecodable(ValueError):
    """What it was, and why it could not be read."""


def _encode_own(value: Any) -> Any:
    if isinstance(value, Slots):
        return str(value)
    # What msgspec asks of a hook that does not know a type.
    raise NotImplementedError(f"no encoding of {type(value).__name__}")


_slots = lru_cache(maxsize=1024)(Slots.parse)  # nearly all are few, and of low numbers


def _decode_own(kind: type, value: Any) -> Any:
    if kind is Slots and isinstance(value, str):
        return _slots(value)
    raise ValueError(f"no decoding of {kind.__name__}")


class Format(msgspec.Struct, frozen=True):
    version: int
    cluster: str  # the cluster's id: a label on everything we make on a host


_encoder = msgspec.json.Encoder(enc_hook=_encode_own)
_decoders: dict[Any, msgspec.json.Decoder[Any]] = {
    kind: msgspec.json.Decoder(kind, dec_hook=_decode_own)
    for kind in (
        Format,
        Presence,
        Ledger,
        Load,
        Settings,
        JobHead,
        JobVersion,
        EventRecord,
        Decision,
        tuple[Group, ...],
        dict[int, InstanceStatus],
        Slots,
        str,
    )
}


# In a value their quotes would not be bare.
_UID, _SLOTS = b'"uid":"', b'"slots":"'
_MARK = 10**30 + 7  # a slot's number that is nothing else's

Unknown = Mapping[str, Any]  # by name; of a list of groups, by `_same`


encode_known = _encoder.encode  # of a record without members that we don't know


def encode(value: Any, unknown: Unknown | None = None) -> bytes:
    """``unknown``: members of the record that is rewritten which this version does not know."""
    if not unknown:
        return _encoder.encode(value)
    return msgspec.json.encode(_with(plain(value), unknown))


class GroupsEncoder:
    """Assignments in a row: those of one job are nearly always alike but for the slots' numbers."""

    def __init__(self) -> None:
        # The kind that was last, and what comes before and after the slots of such a one.
        self._demand: Demand | None = None
        self._kind: tuple[object, ...] = ()
        self._head = self._tail = b""

    def encode(self, groups: tuple[Group, ...]) -> bytes:
        if len(groups) != 1:
            return _encoder.encode(groups)
        (group,) = groups
        kind = (group.uid, group.version, group.generation, group.state)
        if group.demand is not self._demand or kind != self._kind:
            self._demand, self._kind = group.demand, kind
            self._learn(group)
        return self._head + group.slots.spelled() + self._tail

    def _learn(self, group: Group) -> None:
        marked = replace(group, slots=Slots((_MARK,)))
        head, _, self._tail = _encoder.encode((marked,)).partition(b"%b%d" % (_SLOTS, _MARK))
        self._head = head + _SLOTS


def decode(kind: type[T], data: bytes) -> T:
    try:
        value: T = _decoders[kind].decode(data)
    except (msgspec.DecodeError, ValueError, RecursionError) as error:
        raise Undecodable(f"{getattr(kind, '__name__', kind)}: {error}") from error
    return value


def decode_known(kind: type[T], data: bytes) -> tuple[T, Unknown | None]:
    """The value, and what else the record holds; None if nothing."""
    value = decode(kind, data)
    if _encoder.encode(value) == data:
        return value, None
    return value, _beyond(msgspec.json.decode(data), plain(value)) or None


def decode_known_groups(data: bytes) -> tuple[tuple[Group, ...], Unknown | None]:
    """An assignment, likewise. Others of its job say the same around the numbers of their slots.

    What such ones have in common is in memory once.
    """
    head, _, rest = data.partition(_SLOTS)
    slots, _, tail = rest.partition(b'"')
    group = _group_around(head, tail)
    if group is None:
        return decode_known(tuple[Group, ...], data)
    return (replace(group, slots=_slots_of(slots)),), None


@lru_cache(maxsize=256)
def _group_around(head: bytes, tail: bytes) -> Group | None:
    """The one group that is written so, but for its slots; None: there is more to it."""
    start, _, rest = head.partition(_UID)
    uid, _, middle = rest.partition(b'"')
    group = _group_of_anybody(start, middle, tail)
    return None if group is None else replace(group, uid=decode(str, b'"%b"' % uid))


@lru_cache(maxsize=256)
def _group_of_anybody(start: bytes, middle: bytes, tail: bytes) -> Group | None:
    """Likewise, but for its uid too: most jobs ask for what another one asks for."""
    data = b'%b%b"%b%b0"%b' % (start, _UID, middle, _SLOTS, tail)
    try:
        groups = decode(tuple[Group, ...], data)
    except Undecodable:
        return None
    return groups[0] if len(groups) == 1 and _encoder.encode(groups) == data else None


@lru_cache(maxsize=1024)
def _slots_of(text: bytes) -> Slots:
    return decode(Slots, b'"%b"' % text)


def plain(value: Any) -> Any:
    """A value as the plain document that its bytes spell."""
    return msgspec.to_builtins(value, enc_hook=_encode_own, str_keys=True)


def of_plain(kind: type[T], document: Any) -> T:
    """The value of such a document. ValueError when it is none."""
    return msgspec.convert(document, kind, dec_hook=_decode_own, str_keys=True, strict=True)


def _same(group: dict[str, Any]) -> str:
    """What stays of a group while its slots come and go and its state changes."""
    return f"{group.get('uid')}.{group.get('version')}.{group.get('generation', 0)}"


def _by_group(items: Any) -> dict[str, dict[str, Any]]:
    """Groups that differ in slots or state alone share their unknown members."""
    found: dict[str, dict[str, Any]] = {}
    for item in items:
        if isinstance(item, dict):
            found.setdefault(_same(item), {}).update(item)
    return found


def _beyond(found: Any, known: Any) -> dict[str, Any]:
    """The members that are not known, at any depth of objects; groups are told by `_same`."""
    if isinstance(found, list):
        return _beyond(_by_group(found), _by_group(known))
    if not (isinstance(found, dict) and isinstance(known, dict)):
        return {}
    unknown = {}
    for name, value in found.items():
        if name not in known:
            unknown[name] = value
        elif isinstance(value, dict) and (inner := _beyond(value, known[name])):
            unknown[name] = inner
    return unknown


def _with(document: Any, unknown: Unknown) -> Any:
    """The document and what is not known; objects that are gone take theirs along."""
    if isinstance(document, list | tuple):
        return [_with(group, unknown.get(_same(group), {})) for group in document]
    for name, value in unknown.items():
        if name not in document:
            document[name] = value
        elif isinstance(document[name], dict) and isinstance(value, Mapping):
            _with(document[name], value)
    return document


def decode_groups(data: bytes) -> tuple[Group, ...]:
    return decode(tuple[Group, ...], data)


def decode_statuses(data: bytes) -> dict[int, InstanceStatus]:
    """Words that a million of them have in common are in memory once."""
    found = decode(dict[int, InstanceStatus], data)
    for status in found.values():
        force_setattr(status, "uid", intern(status.uid))
        for container in status.containers:
            force_setattr(container, "name", intern(container.name))
            force_setattr(container, "state", intern(container.state))
    return found
