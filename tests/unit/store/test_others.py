"""What somebody else writes in one transaction: read quickly, and read no less carefully."""

import asyncio
import json
from collections.abc import Sequence
from random import Random

import pytest

from ozymandias.model.node import Ledger, Load, Node, NodeName, Presence, Resources
from ozymandias.model.snapshot import Snapshot
from ozymandias.model.tables import Table
from ozymandias.ports import Delete, Op, Put
from ozymandias.store import codec, keys
from ozymandias.store import etcd_pb2 as pb
from ozymandias.store.changes import Written
from ozymandias.store.etcd_watch import Events
from ozymandias.store.mirror import Mirror
from tests.unit.store.rig import GIB, Peer, creation, in_virtual_time, job, peers

NODES = [NodeName(f"m{number}") for number in range(6)]
GROUP = {"uid": "u", "version": 1, "state": "running", "slots": "0", "demand": {}}


async def fresh(peer: Peer) -> Snapshot:
    """What somebody reads who has read nothing before."""
    mirror = Mirror(peer.store)
    following = asyncio.create_task(mirror.run())
    await mirror.reached(peer.mirror.revision)
    following.cancel()
    return mirror.snapshot()


def put(node: NodeName, document: object) -> Put:
    return Put(keys.assignment(node, job().key), json.dumps(document).encode())


def test_a_transaction_of_somebody_else_is_shown_as_it_is() -> None:
    """What can't be read in it is left out, alone; members of a newer version are kept."""

    async def main() -> None:
        async with peers() as (etcd, [peer]):
            told = peer.mirror.follow_jobs()
            told.clear()
            stray = Put(keys.ASSIGNMENTS + b"m0/astray", b"[]")
            transactions: list[Sequence[Op]] = [
                [put(node, [GROUP]) for node in NODES],
                [put(NODES[0], [GROUP | {"slots": "x"}]), put(NODES[1], [GROUP | {"slots": "1"}])],
                [put(NODES[2], [GROUP | {"colour": "blue"}]), put(NODES[3], [GROUP, GROUP]), stray],
                [put(NODES[2], [GROUP]), Delete(keys.assignment(NODES[4], job().key))],
            ]
            for then in transactions:
                etcd.txn((), then)
                await peer.mirror.reached(etcd.revision)
                assert peer.mirror.snapshot() == await fresh(peer)
                assert peer.mirror.others_revision == etcd.revision
                if "colour" in str(then):
                    assert peer.mirror.snapshot().unknown
            assert told == {job().key}
            assert peer.mirror.snapshot().of(job().key).keys() == {*NODES} - {NODES[0], NODES[4]}

    in_virtual_time(main)


@pytest.mark.parametrize("is_seen", [True, False])
def test_ledgers_that_others_rewrite_are_read_when_somebody_looks(is_seen: bool) -> None:
    """Each of them, or the last of many: with what can't be read, and what is new to us."""
    ledger = json.loads(codec.encode(Ledger(capacity=Resources(memory_bytes=7))))

    def write(node: NodeName, **changes: object) -> Put:
        return Put(keys.ledger(node), json.dumps(ledger | changes).encode())

    async def main() -> None:
        async with peers() as (etcd, [peer]):
            m0, m1, m2, *_ = NODES
            transactions: list[Sequence[Op]] = [
                [write(node, is_cordoned=False) for node in NODES],
                [write(m0, is_cordoned=True), Put(keys.ledger(m1), b"{"), put(m0, [GROUP])],
                [write(m0, commit="c"), Put(keys.LEDGERS + b"no/name", b"{}")],
                [write(m2, colour="blue"), write(m1, commit="c")],
                [write(m2, commit="d")],
                [write(m1, colour="red"), write(m0, commit="e")],
                [Delete(keys.ledger(NODES[3])), Put(keys.ledger(NODES[4]), b"7")],
            ]
            for number, then in enumerate(transactions):
                etcd.txn((), then)
                await peer.mirror.reached(etcd.revision)
                assert peer.mirror.others_revision == etcd.revision
                if is_seen or number == len(transactions) - 1:
                    assert peer.mirror.snapshot() == await fresh(peer)
            nodes = peer.mirror.snapshot().nodes
            assert nodes.keys() == {peer.node, m0, m1, m2, NODES[5]}
            assert nodes[m0].ledger.commit == "e" and not nodes[m0].ledger.is_cordoned
            assert peer.mirror.snapshot().unknown.keys() == {keys.ledger(m1)}

    in_virtual_time(main)


def test_others_are_told_from_us_while_something_of_ours_is_on_its_way() -> None:
    """Their revision is known for theirs, and what we expect is still expected afterwards."""

    async def main() -> None:
        async with peers(["n1", "n2"]) as (etcd, [peer, other]):
            ours = Written()
            ours.add(put(NODES[0], []), None)
            peer.mirror.expect(ours)
            theirs = await other.committer.commit(lambda s: creation(job("theirs"), "n2"))
            await peer.mirror.reached(theirs.revision)
            assert peer.mirror.others_revision == theirs.revision
            assert peer.mirror.snapshot() == await fresh(peer)
            assert ours.meanings
            etcd.txn((), [put(NODES[0], [])])
            await peer.mirror.reached(etcd.revision)
            assert peer.mirror.others_revision == theirs.revision
            assert not ours.meanings

    in_virtual_time(main)


def test_messages_say_what_their_events_say() -> None:
    """In the same order, deletions included."""
    put = pb.Event(kv=pb.KeyValue(key=b"a", value=b"1", mod_revision=7))
    delete = pb.Event(type=pb.Event.DELETE, kv=pb.KeyValue(key=b"b", mod_revision=7))
    events = Events([put, delete])
    said = [(message.kv.key, message.kv.value) for message in events.messages]
    assert said == [(event.kv.key, event.kv.value) for event in events]


def test_assignments_of_one_job_share_what_they_have_in_common() -> None:
    """A million of them are in memory as often as there are jobs, but for their slots."""
    values = (json.dumps([GROUP | {"slots": text}]) for text in ("0", "1-3"))
    written = [
        codec.GroupsEncoder().encode(codec.decode_groups(value.encode())) for value in values
    ]
    (one, _), (two, _) = map(codec.decode_known_groups, written)
    assert one[0].slots != two[0].slots
    assert one[0].uid is two[0].uid and one[0].demand is two[0].demand


def who_is_there(nodes: Table[NodeName, Node]) -> dict[NodeName, Presence | None]:
    return {name: node.presence for name, node in nodes.items()}


@pytest.mark.parametrize("seed", range(40))
def test_who_is_there_is_looked_for_anew_when_that_is_different(seed: int) -> None:
    """And not when ledgers are rewritten and loads told, by others or by us."""
    draw, counted = Random(seed), list[None]()
    ledger = codec.encode(Ledger(capacity=Resources(memory_bytes=7)))

    def look(nodes: Table[NodeName, Node]) -> dict[NodeName, Presence | None]:
        counted.append(None)
        return who_is_there(nodes)

    def write(node: NodeName) -> Op:
        kind = draw.choice([keys.ledger, keys.ledger, keys.load, keys.node])
        presence = Presence(
            address=draw.choice("ab"), machine_id="m", session="s", daemon_version="0", api=""
        )
        values = {keys.ledger: draw.choice([ledger, b"{"]), keys.load: codec.encode(Load())}
        is_gone = draw.random() < 0.2
        value = values.get(kind) or codec.encode(presence)
        return Delete(kind(node)) if is_gone else Put(kind(node), value)

    async def main() -> None:
        async with peers(memory_bytes=64 * GIB) as (etcd, [peer]):
            for number in range(30):
                if draw.random() < 0.2:
                    plan = creation(job(f"j{number}"), "n1")
                    await peer.committer.commit(lambda _, plan=plan: plan)  # type: ignore[misc]
                etcd.txn((), [write(draw.choice(NODES))])
                await peer.mirror.reached(etcd.revision)
                if draw.random() < 0.7:
                    nodes = Table.of(peer.mirror.snapshot().nodes)
                    assert nodes.lasting("who", look) == who_is_there(nodes)
            Table.of(peer.mirror.snapshot().nodes).lasting("who", look)
            looks = len(counted)
            await peer.committer.commit(lambda _: creation(job("last"), "n1"))
            own = peer.mirror.snapshot().nodes[peer.node].ledger
            etcd.txn((), [Put(keys.ledger(peer.node), codec.encode(own))])
            etcd.txn((), [Put(keys.load(peer.node), codec.encode(Load()))])
            await peer.mirror.reached(etcd.revision)
            Table.of(peer.mirror.snapshot().nodes).lasting("who", look)
            assert len(counted) == looks

    in_virtual_time(main, seed)
