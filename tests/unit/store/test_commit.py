"""The one door for schedules: atomic, compared, fenced, and sure of its outcome."""

import asyncio
from collections.abc import Sequence

import pytest

from ozymandias.core.upkeep import plan_tidy
from ozymandias.model.instance import SlotState
from ozymandias.model.job import JobHead
from ozymandias.model.node import NodeName, Resources
from ozymandias.model.plan import JobChange, Plan
from ozymandias.model.pod import PodId
from ozymandias.model.record import replace
from ozymandias.model.snapshot import Snapshot
from ozymandias.ports import Ambiguous, Delete, LeaseLost, Op, TxnResult
from ozymandias.problems import INSUFFICIENT_MEMORY, Problem
from ozymandias.sim.invariants import check_schedule
from ozymandias.store import keys
from ozymandias.store.commit import Committed
from ozymandias.store.registration import register
from tests.unit.store.rig import GIB, creation, edit, in_virtual_time, job, offer, peers, web


def test_a_plan_is_one_revision_and_the_mirror_shows_it() -> None:
    """Job, version, claim, assignment and ledger appear together, and commit() waits for them."""

    async def main() -> None:
        async with peers() as (etcd, [peer]):
            before = etcd.revision
            outcome = await peer.committer.commit(lambda s: creation(job(), "n1", (0, 1)))
            assert isinstance(outcome, Committed)
            assert etcd.revision == before + 1 == outcome.revision
            snapshot = peer.mirror.snapshot()
            assert snapshot.revision == outcome.revision
            assert snapshot.jobs[web()].head.wanted == 2
            assert snapshot.claims == {"web.localhost/": web()}
            ledger = snapshot.nodes[NodeName("n1")].ledger
            assert ledger.held.resources == Resources(memory_bytes=2 * GIB)
            assert [a.slot for a in snapshot.instances()] == [0, 1]
            assert check_schedule(etcd.snapshot_kvs()) == []

    in_virtual_time(main)


def test_a_problem_and_an_empty_plan_write_nothing() -> None:
    """A rejection goes straight back, and nothing to do costs no transaction."""

    async def main() -> None:
        async with peers() as (etcd, [peer]):
            before = etcd.revision
            problem = INSUFFICIENT_MEMORY("no")
            assert await peer.committer.commit(lambda s: problem) is problem
            assert isinstance(await peer.committer.commit(lambda s: None), Committed)
            assert isinstance(await peer.committer.commit(lambda s: Plan(reason="-")), Committed)
            assert etcd.revision == before

    in_virtual_time(main)


@pytest.mark.parametrize("seed", range(10))
def test_racing_peers_never_overfill_a_node(seed: int) -> None:
    """Five peers each submit two jobs of 1G to one node of 4G: four win, the rest are refused."""

    async def main() -> None:
        names = [f"n{i}" for i in range(5)]
        async with peers(names) as (etcd, found):
            bad: list[str] = []
            etcd.on_commit.append(lambda _, __: bad.extend(check_schedule(etcd.snapshot_kvs())))
            for peer in found:
                peer.store.faults.latency = (0.0, 0.01)
                peer.store.faults.watch_lag = (0.0, 0.01)

            def decide(name: str, snapshot: Snapshot) -> Plan | Problem:
                ledger = snapshot.nodes[NodeName("n0")].ledger
                free = ledger.allocatable.memory_bytes - ledger.held.resources.memory_bytes
                return creation(job(name), "n0") if free >= GIB else INSUFFICIENT_MEMORY("full")

            outcomes = await asyncio.gather(
                *(
                    peer.committer.commit(lambda s, n=f"j{i}-{k}": decide(n, s))
                    for i, peer in enumerate(found)
                    for k in range(2)
                )
            )
            assert sum(isinstance(o, Committed) for o in outcomes) == 4
            assert bad == []

    in_virtual_time(main, seed)


@pytest.mark.parametrize("seed", range(30))
def test_a_lost_answer_commits_exactly_once(seed: int) -> None:
    """With half of all answers lost, each of 8 commits is applied once and reported as such."""

    async def main() -> None:
        async with peers(memory_bytes=64 * GIB) as (etcd, [peer]):
            peer.store.faults.ambiguous = 0.4
            peer.store.faults.timeout = 1.0
            created = 0

            def count(_: int, events: object) -> None:
                nonlocal created
                created += sum(
                    e.kv.key.startswith(keys.VERSIONS) and e.kv.version == 1
                    for e in events  # type: ignore[attr-defined]
                )

            etcd.on_commit.append(count)
            for number in range(8):
                name = f"job-{number}"

                def decide(snapshot: Snapshot, name: str = name) -> Plan | None:
                    there = any(key.name == name for key in snapshot.jobs)
                    return None if there else creation(job(name), "n1")

                assert isinstance(await peer.committer.commit(decide), Committed)
                assert any(key.name == name for key in peer.mirror.snapshot().jobs)
            assert created == 8
            assert check_schedule(etcd.snapshot_kvs()) == []

    in_virtual_time(main, seed)


def test_who_lost_its_lease_cannot_commit() -> None:
    """Once the presence record is gone, a commit in its name fails with LeaseLost."""

    async def main() -> None:
        async with peers(["n1", "n2"]) as (etcd, [zombie, _]):
            etcd.expire(zombie.lease.id)
            before = etcd.revision
            with pytest.raises(LeaseLost):
                await zombie.committer.commit(lambda s: creation(job(), "n2"))
            assert etcd.revision == before

    in_virtual_time(main)


def test_a_node_that_vanished_gains_nothing() -> None:
    """A placement on a node whose record is gone loses, and the next decision knows."""

    async def main() -> None:
        async with peers(["n1", "n2"]) as (etcd, [peer, gone]):
            peer.store.faults.watch_lag = (0.5, 0.5)  # the news has not reached the mirror yet
            etcd.expire(gone.lease.id)
            seen: list[bool] = []

            def decide(snapshot: Snapshot) -> Plan | None:
                alive = snapshot.nodes[NodeName("n2")].is_alive
                seen.append(alive)
                return creation(job(), "n2") if alive else None

            await peer.committer.commit(decide)
            assert seen == [True, False]
            assert etcd.get(keys.job(web())) is None

    in_virtual_time(main)


def test_a_node_that_came_back_is_not_declared_dead() -> None:
    """Losing a dead node's work compares that it is absent."""

    async def main() -> None:
        async with peers(["n1", "n2"]) as (etcd, [peer, other]):
            await peer.committer.commit(lambda s: creation(job(), "n2"))
            spec = job()
            etcd.expire(other.lease.id)
            await peer.mirror.reached(etcd.revision)
            loss = Plan(
                reason="lost",
                edits=(edit(spec, "n2", 0, SlotState.RUNNING, None),),
                dead=frozenset({NodeName("n2")}),
            )
            outcome = await peer.committer.commit(lambda s: loss)
            assert isinstance(outcome, Committed)
            assert list(peer.mirror.snapshot().instances()) == []

    in_virtual_time(main)


def test_the_mirror_leaves_out_what_it_cannot_read() -> None:
    """A poisoned key hides that one object; the others are there, and deletions are seen."""

    async def main() -> None:
        async with peers(["n1", "n2"]) as (etcd, [peer, _]):
            await peer.committer.commit(lambda s: creation(job(), "n1"))
            etcd.txn([], [_put(keys.ledger(NodeName("n2")), b"{not json")])
            etcd.txn([], [_put(keys.ROOT + b"jobs/odd", b"{}"), _put(keys.VERSIONS + b"x", b"")])
            await peer.mirror.reached(etcd.revision)
            snapshot = peer.mirror.snapshot()
            assert set(snapshot.nodes) == {"n1"}
            assert set(snapshot.jobs) == {web()}
            etcd.txn([], [Delete(keys.job(web()))])
            await peer.mirror.reached(etcd.revision)
            assert peer.mirror.snapshot().jobs == {}
            assert peer.mirror.snapshot().last_versions == {web(): 1}

    in_virtual_time(main)


@pytest.mark.parametrize(
    ("key", "value"),
    [
        (keys.claim("web.localhost/"), b'"nobody"'),
        (keys.claim("web.localhost/"), b'"one/too/many"'),
        (
            keys.ledger(NodeName("n2")),
            b'{"capacity":{},"new":' + b"[" * 10**5 + b"]" * 10**5 + b"}",
        ),
    ],
    ids=["owner", "path", "depth"],
)
def test_what_is_no_record_though_it_is_json_is_left_out_as_well(key: bytes, value: bytes) -> None:
    """Else every peer would end, and again whenever it is started."""

    async def main() -> None:
        async with peers(["n1", "n2"]) as (etcd, [peer, other]):
            await peer.committer.commit(lambda s: creation(job(), "n1"))
            etcd.txn([], [_put(key, value)])
            for mirror in (peer.mirror, other.mirror):
                await mirror.reached(etcd.revision)
            snapshot = peer.mirror.snapshot()
            assert set(snapshot.jobs) == {web()}
            assert len(snapshot.claims) + len(snapshot.nodes) == 2

    in_virtual_time(main)


def test_the_mirror_lists_again_after_a_compaction() -> None:
    """A client cut off beyond the history's end sees the present when it is back."""

    async def main() -> None:
        async with peers(["n1", "n2"]) as (etcd, [peer, other]):
            peer.store.partition()
            for number in range(5):
                name = f"j{number}"
                await other.committer.commit(
                    lambda s, name=name: creation(job(name, GIB // 8), "n2")
                )
            etcd.compact(etcd.revision)
            peer.store.heal()
            await peer.mirror.reached(etcd.revision)
            assert len(peer.mirror.snapshot().jobs) == 5

    in_virtual_time(main)


def _put(key: bytes, value: bytes):  # type: ignore[no-untyped-def]
    from ozymandias.ports import Put

    return Put(key, value)


def test_a_doubt_is_not_forgotten_when_the_store_goes_away() -> None:
    """An answer was lost, and then nobody answers: the outcome stays unknown, never "nothing"."""

    async def main() -> None:
        async with peers() as (_, [peer]):
            peer.store.faults.ambiguous = 1.0

            def cut() -> None:
                peer.store.faults.ambiguous = 0.0
                peer.store.partition()

            asyncio.get_running_loop().call_later(0.001, cut)
            with pytest.raises(Ambiguous):
                await peer.committer.commit(lambda s: creation(job(), "n1"))

    in_virtual_time(main)


def test_a_job_is_not_ended_beside_a_node_that_brings_a_pod_of_it() -> None:
    """Who ends a stopped job saw nothing of it anywhere; a node that returns has a pod of it."""

    async def main() -> None:
        async with peers(("n1", "n2")) as (etcd, [one, two]):
            await one.committer.commit(lambda s: creation(job(), "n1"))
            head = JobHead(uid="u", version=1, wanted=0, deleting=True)
            left = edit(job(), "n1", 0, SlotState.RUNNING, None)
            stop = Plan(reason="-", job=JobChange(key=web(), head=head), edits=(left,))
            await one.committer.commit(lambda s: stop)
            await one.store.revoke(one.lease)
            for peer in (one, two):
                await peer.mirror.reached(etcd.revision)
            two.store.stick()  # it does not see the other one return
            pod = PodId(
                node=one.node,
                namespace=web().namespace,
                job=web().name,
                slot=0,
                uid="u",
                version=1,
                generation=0,
            )
            lease = await one.store.grant(3600)
            offered = replace(offer(one.node, 4 * GIB), found=(pod,))
            assert await register(one.store, one.mirror, offered, lease.id, "back")
            assert plan_tidy(two.mirror.snapshot()), "it still thinks that all is gone"
            asyncio.get_running_loop().call_later(1.0, two.store.stick, False)
            await two.committer.commit(plan_tidy)
            assert web() in two.mirror.snapshot().jobs
            assert [a.node for a in two.mirror.snapshot().instances(web())] == [one.node]

    in_virtual_time(main)


def test_what_came_and_went_is_not_taken_for_what_never_was() -> None:
    """A job without instances, whose answer was lost and which others have stopped, stays gone."""

    async def main() -> None:
        async with peers(("n1", "n2")) as (etcd, [one, two]):
            one.store.faults.ambiguous = 1.0
            one.store.faults.timeout = 1.0

            async def stop() -> None:
                while web() not in two.mirror.snapshot().jobs:
                    await two.mirror.wait()
                one.store.faults.ambiguous = 0.0
                gone = Plan(reason="-", job=JobChange(key=web(), head=None))
                assert isinstance(await two.committer.commit(lambda s: gone), Committed)

            made = one.committer.commit(lambda s: creation(job(), "n1", slots=()))
            outcome, _ = await asyncio.gather(made, stop(), return_exceptions=True)
            assert isinstance(outcome, Ambiguous)
            await one.mirror.reached(etcd.revision)
            assert web() not in one.mirror.snapshot().jobs

    in_virtual_time(main)


def test_only_what_was_looked_at_is_taken_for_untouched(monkeypatch: pytest.MonkeyPatch) -> None:
    """Not the node's own record, which is as old as its ledger was: nobody knows, so it is said."""
    monkeypatch.setattr("ozymandias.store.sending.LOOKED_AT_MAX", 1)

    def more(snapshot: Snapshot) -> Plan:
        found = snapshot.jobs.get(web())
        wanted = found.head.wanted if found else 0
        new = tuple(
            edit(job(), node, wanted + number, None, SlotState.RUNNING)
            for number, node in enumerate(("n1", "n2"))
        )
        change = creation(job(), "n1").job
        assert change is not None
        version = None if found else change.version
        head = replace(change.head, wanted=wanted + 2)
        return Plan(reason="-", job=replace(change, head=head, version=version), edits=new)

    async def main() -> None:
        async with peers(("n1", "n2"), memory_bytes=64 * GIB) as (etcd, [one, two]):
            txn = two.store.txn

            async def unheard(*operations: Sequence[Op]) -> TxnResult:
                two.store.txn = txn  # type: ignore[method-assign]
                await txn(*operations)  # type: ignore[arg-type]
                await one.mirror.reached(etcd.revision)
                await one.committer.commit(more)
                raise Ambiguous("not heard")

            two.store.txn = unheard  # type: ignore[assignment]
            with pytest.raises(Ambiguous):
                await two.committer.commit(more)
            await one.mirror.reached(etcd.revision)
            assert one.mirror.snapshot().jobs[web()].head.wanted == 4

    in_virtual_time(main)
