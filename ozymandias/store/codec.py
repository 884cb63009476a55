"""Values <-> bytes: JSON by msgspec over the frozen dataclasses of `model/`.

A value that can't be read (a newer schema, a stray write) raises Undecodable; the mirror leaves
that one object out and says so, and the rest of the cluster goes on.
"""

from typing import Any, TypeVar

import msgspec

from ozymandias.model.event import EventRecord
from ozymandias.model.instance import Group, InstanceStatus, Slots
from ozymandias.model.job import JobHead, JobVersion
from ozymandias.model.node import Ledger, Presence

FORMAT_VERSION = 1

T = TypeVar("T")


class Undecodable(ValueError):
    """What it was, and why it could not be read."""


def _encode_own(value: Any) -> Any:
    if isinstance(value, Slots):
        return str(value)
    raise NotImplementedError(f"no encoding of {type(value).__name__}")


def _decode_own(kind: type, value: Any) -> Any:
    if kind is Slots and isinstance(value, str):
        return Slots.parse(value)
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
        JobHead,
        JobVersion,
        EventRecord,
        tuple[Group, ...],
        dict[int, InstanceStatus],
        str,
    )
}


def encode(value: Any) -> bytes:
    return _encoder.encode(value)


def decode(kind: type[T], data: bytes) -> T:
    try:
        value: T = _decoders[kind].decode(data)
    except (msgspec.DecodeError, ValueError, UnicodeDecodeError) as error:
        raise Undecodable(f"{getattr(kind, '__name__', kind)}: {error}") from error
    return value


def decode_groups(data: bytes) -> tuple[Group, ...]:
    return decode(tuple[Group, ...], data)


def decode_statuses(data: bytes) -> dict[int, InstanceStatus]:
    return decode(dict[int, InstanceStatus], data)
