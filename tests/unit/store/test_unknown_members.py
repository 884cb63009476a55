"""S17: what a newer daemon has written into a record survives being rewritten by this one."""

import asyncio
import json
from typing import Any

import pytest

from ozymandias.model.instance import Group, SlotState
from ozymandias.model.job import JobHead, JobVersion
from ozymandias.model.node import Ledger, NodeName, Presence, Resources
from ozymandias.model.plan import JobChange, NodeChange, Plan
from ozymandias.model.record import replace
from ozymandias.ports import Put
from ozymandias.sim.store import SimEtcd
from ozymandias.store import codec, keys
from ozymandias.store.batch import Batch
from ozymandias.store.commit import Committed
from ozymandias.store.registration import Offer, register, renew_offer
from tests.unit.store.rig import GIB, Peer, creation, edit, in_virtual_time, job, peers, web

NEWER = {"colour": "blue", "shape": {"sides": [3, 4]}}
NODE = NodeName("n1")
PLACE = keys.assignment(NODE, web())


async def write(peer: Peer, key: bytes, document: Any, lease: int = 0) -> None:
    """As a newer daemon would."""
    done = await peer.store.txn((), [Put(key, json.dumps(document).encode(), lease)])
    await peer.mirror.reached(done.revision)


def read(etcd: SimEtcd, key: bytes) -> Any:
    found = etcd.get(key)
    assert found is not None
    return json.loads(found.value)


async def commit(peer: Peer, plan: Plan) -> None:
    assert isinstance(await peer.committer.commit(lambda s: plan), Committed)


def scaled(slot: int) -> Plan:
    head = JobHead(uid="u", version=1, wanted=slot + 1)
    return Plan(
        reason="test",
        job=JobChange(key=web(), head=head),
        edits=(edit(job(), NODE, slot, None, SlotState.RUNNING),),
    )


def test_a_jobs_head() -> None:
    """Its members stay while the number changes; a new job of that name does not inherit them."""

    async def main() -> None:
        async with peers() as (etcd, [peer]):
            await commit(peer, creation(job(), NODE))
            await write(peer, keys.job(web()), read(etcd, keys.job(web())) | NEWER)
            await commit(peer, scaled(1))
            found = read(etcd, keys.job(web()))
            assert found["wanted"] == 2
            assert {name: found[name] for name in NEWER} == NEWER
            new = JobHead(uid="v", version=1, wanted=0)
            await commit(peer, Plan(reason="test", job=JobChange(key=web(), head=new)))
            assert not set(read(etcd, keys.job(web()))) & set(NEWER)

    in_virtual_time(main)


MADE = JobChange(
    key=web(),
    head=JobHead(uid="v", version=2, wanted=0),
    version=JobVersion(uid="v", version=2, job=job()),
)


@pytest.mark.parametrize("gone", [[], [JobChange(key=web(), head=None)]])
def test_a_new_job_does_not_inherit_them_while_it_is_made(gone: list[JobChange]) -> None:
    """It is changed before anybody can see that it is another one."""
    changed = JobChange(key=web(), head=JobHead(uid="v", version=2, wanted=3))

    async def main() -> None:
        async with peers() as (etcd, [peer]):
            await commit(peer, creation(job(), NODE, ()))
            await write(peer, keys.job(web()), read(etcd, keys.job(web())) | NEWER)
            peer.store.faults.latency = (0.05, 0.05)
            async with asyncio.TaskGroup() as group:
                for change in (*gone, MADE, changed):
                    group.create_task(commit(peer, Plan(reason="test", job=change)))
                    await asyncio.sleep(0.002)
            found = read(etcd, keys.job(web()))
            assert found["wanted"] == 3
            assert not set(found) & set(NEWER)

    in_virtual_time(main)


def test_nor_where_it_is_laid_over_what_others_have_written() -> None:
    """The same goes for who decides on a newer snapshot that does not show it yet."""

    async def main() -> None:
        async with peers() as (etcd, [peer]):
            await commit(peer, creation(job(), NODE, ()))
            for key in (keys.job(web()), keys.ledger(NODE)):
                await write(peer, key, read(etcd, key) | NEWER)
            snapshot = peer.mirror.snapshot()
            batch = Batch(snapshot, "c" * 16)
            batch.add(Plan(reason="test", job=MADE))
            over = batch.over(replace(snapshot, revision=snapshot.revision + 1), snapshot.revision)
            assert set(over.unknown) == {keys.ledger(NODE)}

    in_virtual_time(main)


def test_a_ledger() -> None:
    """Schedules, settings and registrations rewrite it; members inside its objects stay as well."""

    async def main() -> None:
        async with peers() as (etcd, [peer]):
            key = keys.ledger(NODE)
            before = read(etcd, key)
            before["capacity"]["gpus"] = 4
            await write(peer, key, before | NEWER)
            await commit(peer, creation(job(), NODE))
            drain = NodeChange(node=NODE, is_cordoned=True, drain=None, set_labels={})
            await commit(peer, Plan(reason="test", nodes=(drain,)))
            presence = peer.mirror.snapshot().nodes[NODE].presence
            assert presence is not None
            offer = Offer(
                node=NODE,
                presence=presence,
                capacity=Resources(memory_bytes=5 * GIB, disk_bytes=10 * GIB),
                reserve=Resources(),
                labels={},
                found=(),
            )
            assert await renew_offer(peer.store, peer.mirror, offer, (), "renewed")
            found = read(etcd, key)
            assert (found["commit"], found["is_cordoned"]) == ("renewed", True)
            assert found["capacity"]["gpus"] == 4
            assert {name: found[name] for name in NEWER} == NEWER
            await peer.store.revoke(peer.lease)
            lease = await peer.store.grant(60)
            await peer.mirror.reached(etcd.revision)
            assert await register(peer.store, peer.mirror, offer, lease.id, "joined")
            found = read(etcd, key)
            assert found["commit"] == "joined"
            assert {name: found[name] for name in NEWER} == NEWER

    in_virtual_time(main)


def test_an_assignment() -> None:
    """A group keeps its members while slots come and its state changes; others don't get them."""

    async def main() -> None:
        async with peers() as (etcd, [peer]):
            await commit(peer, creation(job(), NODE))
            (group,) = read(etcd, PLACE)
            await write(peer, PLACE, [group | NEWER])
            await commit(peer, scaled(1))
            stopping = edit(job(), NODE, 0, SlotState.RUNNING, SlotState.STOPPING)
            await commit(peer, Plan(reason="test", edits=(stopping,)))
            groups = read(etcd, PLACE)
            assert [found["slots"] for found in groups] == ["1", "0"]
            for found in groups:
                assert {name: found[name] for name in NEWER} == NEWER

    in_virtual_time(main)


def test_what_this_version_wrote_has_no_unknown_members() -> None:
    """Nothing is noted for it, so rewriting costs nothing."""

    async def main() -> None:
        async with peers() as (_, [peer]):
            await commit(peer, creation(job(), NODE))
            assert peer.mirror.snapshot().unknown == {}

    in_virtual_time(main)


@pytest.mark.parametrize(
    ("kind", "document"),
    [
        (JobHead, {"uid": "u", "version": 1, "wanted": 2}),
        (Ledger, {"capacity": {"memory_bytes": 1}}),
        (
            Presence,
            {
                "address": "a",
                "machine_id": "m",
                "session": "s",
                "daemon_version": "1",
                "api": "x",
            },
        ),
        (JobVersion, {"uid": "u", "version": 1, "job": {"name": "web", "containers": []}}),
    ],
)
def test_a_record_of_any_kind(kind: type[Any], document: dict[str, Any]) -> None:
    """An older writer left members out, a newer one added some: nothing is lost or mistaken."""
    value, unknown = codec.decode_known(kind, json.dumps(document | NEWER).encode())
    assert unknown == NEWER
    written = json.loads(codec.encode(value, unknown))
    assert written == json.loads(codec.encode(value)) | NEWER
    assert codec.decode_known(kind, json.dumps(document).encode()) == (value, None)


def test_a_group_that_is_gone_takes_its_members_along() -> None:
    """And one that is new has none."""
    group = {"uid": "u", "version": 1, "state": "running", "slots": "0", "demand": {}}
    _, unknown = codec.decode_known(tuple[Group, ...], json.dumps([group | NEWER]).encode())
    assert unknown
    other, _ = codec.decode_known(tuple[Group, ...], json.dumps([group | {"version": 2}]).encode())
    assert codec.encode(other, unknown) == codec.encode(other)
