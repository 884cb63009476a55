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
    small, last, number = _SMALL, -1, b""
    for compare in compares:
        key, operand, kind = compare.key, compare.operand, _EQUAL.get(compare.target)
        length = len(key)
        is_usual = 0 < length < _SMALL_MAX and compare.op == "=" and not compare.range_end
        if kind is None or not is_usual or not isinstance(operand, int):
            message = compare_message(compare).SerializeToString()
            parts += (_COMPARE, _varint(len(message)), message)
            continue
        if operand != last:  # most are of the same revision as the one before
            last, number = operand, _varint(operand)
        target, member = kind
        of_key = small[length]
        size = len(target) + len(of_key) + length + len(number) + 2
        parts += (_COMPARE, _varint(size), target, _COMPARE_KEY, of_key, key, member, number)


def _add_operations(parts: list[bytes], kind: bytes, ops: Iterable[Op]) -> None:
    small, most = _SMALL, _SMALL_MAX
    for op in ops:
        if not isinstance(op, Put) or op.lease or op.keep_lease or not (op.key and op.value):
            message = _rare(op)
            parts += (kind, _varint(len(message)), message)
            continue
        key, value = op.key, op.value
        length, size = len(key), len(value)
        of_key = small[length] if length < most else _varint(length)
        of_value = small[size] if size < most else _varint(size)
        size += len(of_key) + length + len(of_value) + 2
        parts += (kind, _put_head(size), of_key, key, _PUT_VALUE, of_value, value)


def _rare(op: Op) -> bytes:
    if isinstance(op, Txn):
        nested = _txn(op.compare, op.then, op.otherwise)
        return _REQUEST_TXN + _varint(len(nested)) + nested
    data: bytes = operation_message(op).SerializeToString()
    return data


@lru_cache(maxsize=4096)
def _put_head(size: int) -> bytes:
    """What comes before the length of a put's key: that it is a put, of so many bytes."""
    inner = _REQUEST_PUT + _varint(size)
    return _varint(len(inner) + size) + inner + _PUT_KEY


@lru_cache(maxsize=4096)
def _varint(number: int) -> bytes:
    """Seven bits a byte, the lowest first; all but the last are marked."""
    found = bytearray()
    while number > 0x7F:
        found.append(number & 0x7F | 0x80)
        number >>= 7
    found.append(number)
    return bytes(found)


_SMALL_MAX = 2048
_SMALL = tuple(map(_varint, range(_SMALL_MAX)))  # lengths of nearly all keys and values
