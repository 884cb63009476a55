"""The Store port's values <-> etcd's messages. Pure: nothing here waits or connects.

etcd takes 128 operations in one transaction and counts them along each path of nested ones, so a
longer list is folded into a tree of transactions without compares: still one request, one
revision, all or nothing. Compares can't be folded: a job on more than some sixty nodes needs a
server with a larger `--max-txn-ops`, as `ozy up` and `ozy cluster init` start it.
"""

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from ozymandias.ports import (
    KV,
    Compare,
    Delete,
    Event,
    Get,
    Op,
    Put,
    TooLarge,
    Txn,
    TxnResult,
)
from ozymandias.store import etcd_pb2 as pb

_DELETED = pb.Event.DELETE
OPERATIONS_MAX = 128  # etcd's default for --max-txn-ops, along one path

_TARGETS = {
    "version": (pb.Compare.VERSION, "version"),
    "create": (pb.Compare.CREATE, "create_revision"),
    "mod": (pb.Compare.MOD, "mod_revision"),
    "value": (pb.Compare.VALUE, "value"),
    "lease": (pb.Compare.LEASE, "lease"),
}
_RESULTS = {
    "=": pb.Compare.EQUAL,
    "!=": pb.Compare.NOT_EQUAL,
    "<": pb.Compare.LESS,
    ">": pb.Compare.GREATER,
}


def kv_of(message: pb.KeyValue) -> KV:
    return KV(
        message.key,
        message.value,
        message.create_revision,
        message.mod_revision,
        message.version,
        message.lease,
    )


def kvs_of(messages: Iterable[pb.KeyValue]) -> tuple[KV, ...]:
    return tuple(map(kv_of, messages))


def event_of(message: pb.Event) -> Event:
    prev = kv_of(message.prev_kv) if message.HasField("prev_kv") else None
    return Event(kv_of(message.kv), message.type == _DELETED, prev)


def txn_result(message: pb.TxnResponse, asked: bool = True) -> TxnResult:
    """``asked`` False: nothing was, and the answers to thousands of puts are not looked through."""
    found = tuple(_gets(message)) if asked else ()
    return TxnResult(message.succeeded, message.header.revision, found)


def reads(ops: Sequence[Op]) -> bool:
    """Whether anything is asked for."""
    return any(
        reads(op.then) or reads(op.otherwise) if isinstance(op, Txn) else isinstance(op, Get)
        for op in ops
    )


def writes(ops: Sequence[Op]) -> bool:
    """Whether a transaction with these may change anything: if not, it may be repeated."""
    return any(
        writes(op.then) or writes(op.otherwise)
        if isinstance(op, Txn)
        else isinstance(op, Put | Delete)
        for op in ops
    )


def fold(ops: Sequence[Op], budget: int, spent: int = 0) -> Sequence[Op]:
    """At most ``budget`` operations along any path; ``spent`` are counted at this level anyway."""
    if len(ops) <= budget:
        return ops
    width = max(spent, budget // 2)
    if width >= budget or width == 0:
        raise TooLarge(f"{len(ops)} operations do not fit beside {spent} compares")
    size = -(-len(ops) // width)
    groups = (ops[start : start + size] for start in range(0, len(ops), size))
    return tuple(Txn((), tuple(fold(group, budget - width))) for group in groups)


def _gets(message: pb.TxnResponse) -> Iterator[tuple[KV, ...]]:
    for response in message.responses:
        kind = response.WhichOneof("response")
        if kind == "response_range":
            yield kvs_of(response.response_range.kvs)
        elif kind == "response_txn":
            yield from _gets(response.response_txn)


def compare_message(compare: Compare) -> pb.Compare:
    target, name = _TARGETS[compare.target]
    operand: dict[str, Any] = {name: compare.operand}
    return pb.Compare(
        result=_RESULTS[compare.op],
        target=target,
        key=compare.key,
        range_end=compare.range_end,
        **operand,
    )


def operation_message(op: Op) -> pb.RequestOp:
    match op:
        case Put():
            put = pb.PutRequest(
                key=op.key, value=op.value, lease=op.lease, ignore_lease=op.keep_lease
            )
            return pb.RequestOp(request_put=put)
        case Delete():
            delete = pb.DeleteRangeRequest(key=op.key, range_end=op.range_end)
            return pb.RequestOp(request_delete_range=delete)
        case Get():
            get = pb.RangeRequest(key=op.key, range_end=op.range_end)
            return pb.RequestOp(request_range=get)
        case Txn():
            nested = pb.TxnRequest(
                compare=map(compare_message, op.compare),
                success=map(operation_message, op.then),
                failure=map(operation_message, op.otherwise),
            )
            return pb.RequestOp(request_txn=nested)
