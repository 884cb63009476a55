"""A transaction as the bytes that etcd reads.

A schedule is thousands of puts and compares in one request, and making a message object of each
takes four times as long as writing their bytes, which are simple enough: in protobuf a member is
its number, its length and itself, and a list is one after the other. What is rarer than a put
and a compare for being equal is left to the generated code. Pure, as `etcd_wire.py` is.
"""

from collections.abc import Iterable, Sequence
from functools import lru_cache
from typing import Self

from ozymandias.ports import Compare, Op, Put, TooLarge, Txn
from ozymandias.store.etcd_wire import OPERATIONS_MAX, compare_message, fold, operation_message

# A member's number and kind: of TxnRequest its lists, of the others the members in their order.
_COMPARE, _SUCCESS, _FAILURE = b"\x0a", b"\x12", b"\x1a"
_REQUEST_PUT, _PUT_KEY, _PUT_VALUE = b"\x12", b"\x0a", b"\x12"
_REQUEST_TXN = b"\x22"
_COMPARE_KEY = b"\x1a"
# What is compared, and the number of the operand. That it is for being equal is the default.
_EQUAL = {
    "version": (b"", b"\x20"),
    "create": (b"\x10\x01", b"\x28"),
    "mod": (b"\x10\x02", b"\x30"),
    "lease": (b"\x10\x04", b"\x40"),
}


SIZE_BITS = 32  # a value is no larger than that
FRAMES_MAX = 4096


class Encoded(tuple[Op, ...]):
    """Operations that know their bytes, for when a transaction succeeds."""

    data: bytes

    def __new__(cls, ops: Iterable[Op]) -> Self:
        made = super().__new__(cls, ops)
        parts: list[bytes] = []
        _add_operations(parts, _SUCCESS, made)
        made.data = b"".join(parts)
        return made


def txn_request(compare: Sequence[Compare], then: Sequence[Op], otherwise: Sequence[Op]) -> bytes:
    return _txn(compare, _folded(then, len(compare)), _folded(otherwise, len(compare)))


def _txn(compare: Sequence[Compare], then: Sequence[Op], otherwise: Sequence[Op]) -> bytes:
    parts: list[bytes] = []
    _add_compares(parts, compare)
    if isinstance(then, Encoded):
        parts.append(then.data)
    else:
        _add_operations(parts, _SUCCESS, then)
    _add_operations(parts, _FAILURE, otherwise)
    return b"".join(parts)


def _folded(ops: Sequence[Op], compares: int) -> Sequence[Op]:
    """Within the default limit if that can be; else the server must take more, as ours do."""
    try:
        return fold(ops, OPERATIONS_MAX, compares)
    except TooLarge:
        return ops


def _add_compares(parts: list[bytes], compares: Iterable[Compare]) -> None:
    for compare in compares:
        key, operand = compare.key, compare.operand
        if not isinstance(operand, int) or compare.op != "=" or compare.range_end or not key:
            message = compare_message(compare).SerializeToString()
            parts += (_COMPARE, _varint(len(message)), message)
            continue
        tail = _compare_tail(compare.target, operand)
        parts += (_compare_head(compare.target, len(key), len(tail)), key, tail)


@lru_cache(maxsize=4096)
def _compare_head(target: str, length: int, tail: int) -> bytes:
    """What comes before a key of this length, in a compare that ends in so many bytes."""
    head = _EQUAL[target][0] + _COMPARE_KEY + _varint(length)
    return _COMPARE + _varint(len(head) + length + tail) + head


@lru_cache(maxsize=4096)
def _compare_tail(target: str, operand: int) -> bytes:
    return _EQUAL[target][1] + _varint(operand)


def _add_operations(parts: list[bytes], kind: bytes, ops: Iterable[Op]) -> None:
    frames = _FRAMES
    for op in ops:
        if type(op) is not Put or op.lease or op.keep_lease:
            message = _rare(op)
            parts += (kind, _varint(len(message)), message)
            continue
        key, value = op.key, op.value
        head, middle = frames[len(key) << SIZE_BITS | len(value)]
        parts += (kind, head, key, middle, value)


def _rare(op: Op) -> bytes:
    if isinstance(op, Txn):
        nested = _txn(op.compare, op.then, op.otherwise)
        return _REQUEST_TXN + _varint(len(nested)) + nested
    data: bytes = operation_message(op).SerializeToString()
    return data


class _Frames(dict[int, tuple[bytes, bytes]]):
    """What comes before the key in a put, and between key and value, by the lengths of both.

    There are thousands of puts in a schedule, of few lengths; a dict tells them sooner than a
    function that remembers.
    """

    def __missing__(self, lengths: int) -> tuple[bytes, bytes]:
        if len(self) >= FRAMES_MAX:
            self.clear()
        length, size = lengths >> SIZE_BITS, lengths & (1 << SIZE_BITS) - 1
        # What is empty is left out.
        head = _PUT_KEY + _varint(length) if length else b""
        middle = _PUT_VALUE + _varint(size) if size else b""
        inside = len(head) + length + len(middle) + size
        inner = _REQUEST_PUT + _varint(inside)
        found = self[lengths] = _varint(len(inner) + inside) + inner + head, middle
        return found


_FRAMES = _Frames()


@lru_cache(maxsize=4096)
def _varint(number: int) -> bytes:
    """Seven bits a byte, the lowest first; all but the last are marked."""
    found = bytearray()
    while number > 0x7F:
        found.append(number & 0x7F | 0x80)
        number >>= 7
    found.append(number)
    return bytes(found)
