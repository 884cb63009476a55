"""Group commit: who waits at the same time is written together, and nobody pays for another."""

import asyncio

import pytest

from ozymandias.core.apply import apply
from ozymandias.core.edits import step, stop
from ozymandias.core.schedule import plan_repair, plan_scale
from ozymandias.model.instance import SlotState
from ozymandias.model.job import JobHead
from ozymandias.model.node import NodeName
from ozymandias.model.plan import JobChange, Plan
from ozymandias.model.record import replace
from ozymandias.model.snapshot import Snapshot
from ozymandias.ports import Ambiguous, LeaseLost, Put
from ozymandias.problems import INSUFFICIENT_MEMORY, PLAN_TOO_LARGE, Problem
from ozymandias.sim.clock import SimClock
from ozymandias.sim.invariants import check_schedule
from ozymandias.sim.store import Cut
from ozymandias.store import keys
from ozymandias.store.batch import COMPARES_ANYWHERE, Batch
from ozymandias.store.chain import CHAIN_SHARE, LINKS_MAX, Chain
from ozymandias.store.commit import Committed, Decide
from ozymandias.store.sending import Lost, send
from ozymandias.store.transaction import completed, drafted
from tests.unit.store.rig import (
    GIB,
    NAMES,
    Peer,
    creation,
    edit,
    in_virtual_time,
    job,
    peers,
    web,
)


def submission(name: str, memory_bytes: int = GIB, node: str = "n1") -> Decide:
    def decide(snapshot: Snapshot) -> Plan | Problem:
        ledger = snapshot.nodes[NodeName(node)].ledger
        free = ledger.allocatable.memory_bytes - ledger.held.resources.memory_bytes
        if free < memory_bytes:
            return INSUFFICIENT_MEMORY("full")
        spec = job(name, memory_bytes)
        return Plan(reason="there") if spec.key in snapshot.jobs else creation(spec, node)

    return decide


async def all_at_once(peer: Peer, decides: list[Decide]) -> list[object]:
    tasks = (peer.committer.commit(decide) for decide in decides)
    return list(await asyncio.gather(*tasks, return_exceptions=True))


def test_many_that_wait_are_one_revision() -> None:
    """Twenty submissions at once: one to begin with, all the others together in the next."""

    async def main() -> None:
        async with peers(memory_bytes=64 * GIB) as (etcd, [peer]):
            peer.store.faults.latency = (0.01, 0.01)
            before = etcd.revision
            outcomes = await all_at_once(peer, [submission(f"j{n}") for n in range(20)])
            assert all(isinstance(o, Committed) for o in outcomes)
            assert etcd.revision <= before + 2
            assert len(peer.mirror.snapshot().jobs) == 20
            assert check_schedule(etcd.snapshot_kvs()) == []

    in_virtual_time(main)


def test_each_decision_sees_the_ones_before_it() -> None:
    """Of ten jobs of 1G at once on 4G, exactly four are taken, and the others are told why."""

    async def main() -> None:
        async with peers(memory_bytes=4 * GIB) as (etcd, [peer]):
            outcomes = await all_at_once(peer, [submission(f"j{n}") for n in range(10)])
            assert sum(isinstance(o, Committed) for o in outcomes) == 4
            assert sum(isinstance(o, Problem) for o in outcomes) == 6
            assert check_schedule(etcd.snapshot_kvs()) == []

    in_virtual_time(main)


def test_one_bad_decision_harms_nobody_else() -> None:
    """A refusal, a bug, and a plan that breaks the rules: each caller gets its own outcome."""

    async def main() -> None:
        async with peers(memory_bytes=8 * GIB) as (_, [peer]):

            def bug(snapshot: Snapshot) -> Plan:
                raise ZeroDivisionError

            decides: list[Decide] = [
                submission("good-1"),
                lambda s: INSUFFICIENT_MEMORY("never"),
                bug,
                lambda s: creation(job("huge", 100 * GIB), "n1"),
                lambda s: None,
                submission("good-2"),
            ]
            good, refused, broken, huge, empty, last = await all_at_once(peer, decides)
            assert isinstance(good, Committed)
            assert isinstance(refused, Problem)
            assert isinstance(broken, ZeroDivisionError)
            assert isinstance(huge, AssertionError)
            assert isinstance(empty, Committed)
            assert empty.plan.is_empty
            assert isinstance(last, Committed)
            assert {key.name for key in peer.mirror.snapshot().jobs} == {"good-1", "good-2"}

    in_virtual_time(main)


def test_one_job_changes_at_most_once_per_revision() -> None:
    """Three changes of one job at once are three revisions, and all of them happen."""

    async def main() -> None:
        async with peers() as (etcd, [peer]):
            await peer.committer.commit(lambda s: creation(job(), "n1"))
            seen: list[int] = []

            def count_up(snapshot: Snapshot) -> Plan:
                head = snapshot.jobs[web()].head
                seen.append(head.restart)
                raised = replace(head, restart=head.restart + 1)
                return Plan(reason="test", job=JobChange(key=web(), head=raised))

            before = etcd.revision
            outcomes = await all_at_once(peer, [count_up] * 3)
            revisions = [o.revision for o in outcomes if isinstance(o, Committed)]
            assert sorted(revisions) == [before + 1, before + 2, before + 3]
            assert peer.mirror.snapshot().jobs[web()].head.restart == 3

    in_virtual_time(main)


def test_a_host_may_change_hands_within_a_batch() -> None:
    """One job gives up a host, another takes it: one write, compared with the old owner."""

    async def main() -> None:
        async with peers() as (etcd, [peer]):
            await peer.committer.commit(lambda s: creation(job("old"), "n1"))
            peer.store.faults.latency = (0.01, 0.01)
            claim = frozenset({"old.localhost/"})

            def give_up(snapshot: Snapshot) -> Plan:
                key = job("old").key
                head = replace(snapshot.jobs[key].head, wanted=0)
                return Plan(reason="test", job=JobChange(key=key, head=head, disclaim=claim))

            def take(snapshot: Snapshot) -> Plan:
                plan = creation(job("new"), "n1")
                assert plan.job is not None
                return replace(plan, job=replace(plan.job, claim=claim))

            before = etcd.revision
            decides = [submission("first"), give_up, take]
            outcomes = await all_at_once(peer, decides)
            assert all(isinstance(o, Committed) for o in outcomes)
            assert etcd.revision <= before + 2
            assert peer.mirror.snapshot().claims["old.localhost/"] == job("new").key

    in_virtual_time(main)


@pytest.mark.parametrize("eager", [False, True], ids=["in-turns", "ahead"])
@pytest.mark.parametrize("seed", range(20))
def test_racing_peers_with_batches(seed: int, eager: bool) -> None:
    """Four peers, each with eight submissions at once, on 16G: sixteen are taken, none twice."""

    async def main() -> None:
        names = [f"n{i}" for i in range(4)]
        async with peers(names, memory_bytes=16 * GIB, eager=eager) as (etcd, found):
            bad: list[str] = []
            etcd.on_commit.append(lambda _, __: bad.extend(check_schedule(etcd.snapshot_kvs())))
            for peer in found:
                peer.store.faults.latency = (0.0, 0.01)
                peer.store.faults.watch_lag = (0.0, 0.01)
            outcomes = await asyncio.gather(
                *(
                    peer.committer.commit(submission(f"j{i}-{k}", node="n0"))
                    for i, peer in enumerate(found)
                    for k in range(8)
                )
            )
            assert sum(isinstance(o, Committed) for o in outcomes) == 16
            assert bad == []

    in_virtual_time(main, seed)


@pytest.mark.parametrize("eager", [False, True], ids=["in-turns", "ahead"])
@pytest.mark.parametrize("seed", range(20))
def test_lost_answers_of_batches(seed: int, eager: bool) -> None:
    """With answers lost, every submission of a batch is applied exactly once, or says unknown."""

    async def main() -> None:
        async with peers(memory_bytes=64 * GIB, eager=eager) as (etcd, [peer]):
            peer.store.faults.ambiguous = 0.4
            peer.store.faults.timeout = 1.0
            created: list[bytes] = []

            def count(_: int, events: object) -> None:
                created.extend(
                    e.kv.key
                    for e in events  # type: ignore[attr-defined]
                    if e.kv.key.startswith(keys.VERSIONS)
                )

            etcd.on_commit.append(count)
            outcomes = await all_at_once(peer, [submission(f"j{n}") for n in range(16)])
            for number, outcome in enumerate(outcomes):
                there = job(f"j{number}").key in peer.mirror.snapshot().jobs
                assert (isinstance(outcome, Committed) and there) or isinstance(outcome, Ambiguous)
            assert len(created) == len(set(created))
            assert check_schedule(etcd.snapshot_kvs()) == []

    in_virtual_time(main, seed)


def test_without_a_lease_all_are_told() -> None:
    """A batch of a daemon that lost its lease fails as a whole, and writes nothing."""

    async def main() -> None:
        async with peers(["n1", "n2"]) as (etcd, [zombie, _]):
            etcd.expire(zombie.lease.id)
            before = etcd.revision
            outcomes = await all_at_once(zombie, [submission(f"j{n}", node="n2") for n in range(5)])
            assert all(isinstance(o, LeaseLost) for o in outcomes)
            assert etcd.revision == before

    in_virtual_time(main)


def test_a_batch_stays_within_what_etcd_takes() -> None:
    """What an etcd refuses for its number of compares is split; all get in, in turns."""

    async def main() -> None:
        async with peers(memory_bytes=1024 * GIB) as (_, [peer]):
            sizes: list[int] = []
            real = peer.store.txn

            async def txn(compare, then, otherwise=()):  # type: ignore[no-untyped-def]
                result = await real(compare, then, otherwise)
                sizes.append(len(compare))
                return result

            peer.store.txn = txn  # type: ignore[method-assign]
            outcomes = await all_at_once(peer, [submission(f"j{n}") for n in range(150)])
            assert all(isinstance(o, Committed) for o in outcomes)
            assert max(sizes) <= COMPARES_ANYWHERE + 2
            assert len(sizes) <= 8

    in_virtual_time(main)


def missing(number: int, *, is_divisible: bool) -> Decide:
    """One instance of each of so many jobs, as far as it is not there yet."""

    def decide(snapshot: Snapshot) -> Plan | None:
        specs = [job(f"j{n:03}") for n in range(number)]
        edits = [edit(s, "n1", 0, None, SlotState.RUNNING) for s in specs if not snapshot.of(s.key)]
        return Plan(reason="missing", edits=tuple(edits), is_divisible=is_divisible)

    return decide


def test_a_plan_that_may_be_divided_is_made_smaller_until_it_fits() -> None:
    """What peers do of their own accord gets done, however much of it there is at once."""

    async def main() -> None:
        async with peers(memory_bytes=1024 * GIB) as (etcd, [peer]):
            for n in range(300):
                await peer.committer.commit(lambda s, n=n: creation(job(f"j{n:03}"), "n1", ()))
            decide = missing(300, is_divisible=True)
            steps = []
            while (plan := decide(peer.mirror.snapshot())) and not plan.is_empty:  # type: ignore[union-attr]
                outcome = await peer.committer.commit(decide)
                assert isinstance(outcome, Committed)
                steps.append(len(outcome.plan.edits))
            assert sum(steps) == 300
            assert len(steps) <= 5
            assert check_schedule(etcd.snapshot_kvs()) == []

    in_virtual_time(main)


def test_a_plan_that_is_too_large_is_a_problem_with_numbers() -> None:
    """It is whoever asked who is told; nothing is changed, and the next one is not held up."""

    async def main() -> None:
        async with peers(memory_bytes=1024 * GIB) as (etcd, [peer]):
            for n in range(300):
                await peer.committer.commit(lambda s, n=n: creation(job(f"j{n:03}"), "n1", ()))
            before = etcd.revision
            outcome = await peer.committer.commit(missing(300, is_divisible=False))
            assert isinstance(outcome, Problem) and outcome.kind is PLAN_TOO_LARGE
            assert "300 instances in 300 places" in outcome.detail
            assert "by 150 at a time" in outcome.hint
            assert etcd.revision == before
            small = await peer.committer.commit(submission("small"))
            assert isinstance(small, Committed) and small.revision > before

    in_virtual_time(main)


def test_whether_a_plan_is_too_large_is_known_beforehand() -> None:
    """By the store's own word, which writes nothing; a store that is silent is not waited for."""

    async def main() -> None:
        async with peers(memory_bytes=1024 * GIB) as (etcd, [peer]):
            for n in range(300):
                await peer.committer.commit(lambda s, n=n: creation(job(f"j{n:03}"), "n1", ()))
            before, snapshot = etcd.revision, peer.mirror.snapshot()
            found = {}
            for number in (10, 40, 300):
                plan = missing(number, is_divisible=False)(snapshot)
                assert isinstance(plan, Plan)
                found[number] = await peer.committer.rehearse(snapshot, plan)
            assert found[10] is found[40] is None
            assert found[300] is not None and found[300].kind is PLAN_TOO_LARGE
            assert "300 instances in 300 places" in found[300].detail
            assert etcd.revision == before

            async def silence(*_: object) -> None:
                await asyncio.Event().wait()

            peer.store.txn = silence  # type: ignore[method-assign, assignment]
            assert await peer.committer.rehearse(snapshot, plan) is None

    in_virtual_time(main)


def test_a_batch_of_one_takes_any_plan() -> None:
    """A plan larger than a batch may be is still a transaction of its own."""

    async def main() -> None:
        async with peers(memory_bytes=1024 * GIB) as (_, [peer]):
            snapshot = peer.mirror.snapshot()
            batch = Batch(snapshot, "c", compares_max=2)
            plan = creation(job("wide", 1024), "n1", range(5000))
            assert batch.takes(plan)
            batch.add(plan)
            assert not batch.takes(creation(job("next"), "n1"))
            assert batch.after == apply(snapshot, plan, "c")
            head = JobHead(uid="u", version=1, wanted=5000, commit="c")
            assert batch.after.jobs[job("wide").key].head == head
            assert len(completed(drafted(batch, NAMES), batch, ()).marked) == 2

    in_virtual_time(main)


def test_what_did_not_change_is_not_copied() -> None:
    """Two snapshots share every mapping that stayed as it was."""

    async def main() -> None:
        async with peers() as (_, [peer]):
            await peer.committer.commit(lambda s: creation(job(), "n1"))
            first = peer.mirror.snapshot()
            assert peer.mirror.snapshot() is first
            head = replace(first.jobs[web()].head, wanted=7)
            change = Plan(reason="test", job=JobChange(key=web(), head=head))
            await peer.committer.commit(lambda s: change)
            second = peer.mirror.snapshot()
            assert second.jobs is not first.jobs
            assert first.jobs[web()].head.wanted == 1
            for part in ("nodes", "assignments", "statuses", "claims", "last_versions"):
                assert getattr(second, part) is getattr(first, part)

    in_virtual_time(main)


def test_who_stops_a_slot_changes_what_others_count() -> None:
    """A stop compares and rewrites the job's head, as a scale-up counts on it; a release does not.

    Found by simulation: a surplus instance was stopped beside a scale-up that had counted it.
    """

    async def main() -> None:
        async with peers() as (_, [peer]):
            await peer.committer.commit(lambda s: creation(job(), "n1"))
            snapshot = peer.mirror.snapshot()
            [running] = snapshot.instances_on(NodeName("n1"))
            stopping = Plan(reason="test", edits=(stop(running, "surplus"),))
            batch = Batch(snapshot, "stop")
            batch.add(stopping)
            head = keys.job(web())
            made = completed(drafted(batch, NAMES), batch, ())
            assert head in {c.key for c in made.compare} and head in made.marked
            after = apply(snapshot, stopping, "stop")
            [leaving] = after.instances_on(NodeName("n1"))
            release = Batch(after, "release")
            release.add(Plan(reason="test", edits=(step(leaving, None, "gone"),)))
            assert head not in {
                c.key for c in completed(drafted(release, NAMES), release, ()).compare
            }

    in_virtual_time(main)


def test_a_loss_is_not_beside_a_scale_that_counted_it() -> None:
    """Who declares a node dead rewrites the heads of what was live there, placed again or not.

    Found by simulation (seed 11081): 4 wanted, and 3 live, in the revision of the scale.
    """

    async def main() -> None:
        async with peers(["n1", "n2"], memory_bytes=GIB) as (etcd, [lost, peer]):
            await peer.committer.commit(lambda s: creation(job(), "n1"))
            await lost.store.revoke(lost.lease)
            await peer.mirror.reached(etcd.revision)
            snapshot = peer.mirror.snapshot()
            scale = plan_scale(snapshot, web(), 2)
            assert isinstance(scale, Plan) and len(scale.edits) == 1
            scaling = Batch(snapshot, "scale")
            scaling.add(scale)
            repair = plan_repair(scaling.after, frozenset({lost.node}))
            assert repair is not None and repair.pending and not scaling.takes(repair)
            repairing = Batch(snapshot, "repair")
            repairing.add(repair)
            first = await send(
                peer.store, completed(drafted(repairing, NAMES), repairing, ()), "repair"
            )
            second = await send(
                peer.store, completed(drafted(scaling, NAMES), scaling, ()), "scale"
            )
            assert isinstance(first, int) and isinstance(second, Lost)

    in_virtual_time(main)


def test_the_next_is_decided_while_one_is_on_its_way() -> None:
    """It sees what the one before it will leave behind, and is sent as soon as that is there."""

    async def main() -> None:
        async with peers(memory_bytes=64 * GIB) as (etcd, [peer]):
            peer.store.faults.latency = (0.05, 0.05)
            loop = asyncio.get_running_loop()
            decided: list[tuple[float, set[str]]] = []

            def noted(name: str) -> Decide:
                def decide(snapshot: Snapshot) -> Plan:
                    decided.append((loop.time(), {key.name for key in snapshot.jobs}))
                    return creation(job(name), "n1")

                return decide

            async with asyncio.TaskGroup() as group:
                first = group.create_task(peer.committer.commit(noted("a")))
                await asyncio.sleep(0.01)
                second = group.create_task(peer.committer.commit(noted("b")))
                await asyncio.sleep(0.01)
                assert not first.done()
                assert [seen for _, seen in decided] == [set(), {"a"}]
            one, two = first.result(), second.result()
            assert isinstance(one, Committed) and isinstance(two, Committed)
            assert two.revision == one.revision + 1
            assert len(decided) == 2
            assert check_schedule(etcd.snapshot_kvs()) == []

    in_virtual_time(main)


def test_what_waited_long_for_the_answer_before_it_is_decided_again() -> None:
    """Who is healthy, and who is gone, is not compared: a decision must not be old when sent."""

    async def main() -> None:
        async with peers(memory_bytes=64 * GIB) as (etcd, [peer]):
            decided: list[float] = []
            loop = asyncio.get_running_loop()

            def noted(snapshot: Snapshot) -> Plan:
                decided.append(loop.time())
                return creation(job("b"), "n1")

            peer.store.partition(Cut.REQUESTS)
            async with asyncio.TaskGroup() as group:
                group.create_task(peer.committer.commit(submission("a")))
                await asyncio.sleep(0.01)
                group.create_task(peer.committer.commit(noted))
                await asyncio.sleep(5.0)
                healed = loop.time()
                assert len(decided) == 1
                peer.store.heal()
            assert len(decided) == 2 and decided[-1] >= healed
            assert {key.name for key in peer.mirror.snapshot().jobs} == {"a", "b"}
            assert check_schedule(etcd.snapshot_kvs()) == []

    in_virtual_time(main)


def test_what_was_decided_on_top_of_a_loser_is_decided_again() -> None:
    """A batch that another peer has overtaken takes along what counted on it; all get in later."""

    async def main() -> None:
        async with peers(["n1", "n2"], memory_bytes=64 * GIB) as (etcd, [slow, quick]):
            slow.store.faults.latency = (0.05, 0.05)
            async with asyncio.TaskGroup() as group:
                tasks = [group.create_task(slow.committer.commit(submission("a")))]
                await asyncio.sleep(0.01)
                tasks.append(group.create_task(slow.committer.commit(submission("b"))))
                tasks.append(group.create_task(quick.committer.commit(submission("c"))))
            assert all(isinstance(task.result(), Committed) for task in tasks)
            assert {key.name for key in slow.mirror.snapshot().jobs} == {"a", "b", "c"}
            assert check_schedule(etcd.snapshot_kvs()) == []

    in_virtual_time(main)


def test_who_comes_while_a_loser_is_on_its_way_waits_for_its_answer() -> None:
    """What one on its way will leave behind is void once others have rewritten what it relies on.

    Laid over what they wrote, its ledger would promise room that they have taken.
    """

    async def main() -> None:
        async with peers(["n1", "n2"], memory_bytes=3 * GIB) as (etcd, [cut_off, other]):
            cut_off.store.partition(Cut.REQUESTS)  # it hears what others do
            async with asyncio.TaskGroup() as group:
                lost = group.create_task(cut_off.committer.commit(submission("a")))
                await asyncio.sleep(0.1)
                assert isinstance(await other.committer.commit(submission("b", 2 * GIB)), Committed)
                await cut_off.mirror.reached(etcd.revision)
                late = group.create_task(cut_off.committer.commit(submission("c", 2 * GIB)))
                await asyncio.sleep(0.1)
                cut_off.store.heal()
            assert isinstance(lost.result(), Committed)  # decided again, there is room for it
            assert isinstance(late.result(), Problem)  # and none for this one
            assert check_schedule(etcd.snapshot_kvs()) == []

    in_virtual_time(main)


def noted(seen: list[set[str]], name: str, *, needs: str = "") -> Decide:
    """A job on n1 that notes which others there are, and is refused without one of them."""

    def decide(snapshot: Snapshot) -> Plan | Problem:
        seen.append({key.name for key in snapshot.jobs})
        is_refused = needs and job(needs).key not in snapshot.jobs
        return INSUFFICIENT_MEMORY(f"no {needs}") if is_refused else creation(job(name), "n1")

    return decide


@pytest.mark.parametrize("needs", ["", "b"])
@pytest.mark.parametrize("is_calm", [True, False])
def test_others_changes_are_laid_beneath_where_races_are_lost_or_something_is_refused(
    needs: str, is_calm: bool
) -> None:
    """Else decisions go on from our own batch: the compares tell whether they may."""
    seen: list[set[str]] = []

    async def main() -> None:
        async with peers(["n1", "n2"], memory_bytes=64 * GIB) as (etcd, [cut_off, other]):
            if not is_calm:
                cut_off.committer._chain.broken(Batch(Snapshot(), ""))
            cut_off.store.partition(Cut.REQUESTS)  # it hears what others do
            async with asyncio.TaskGroup() as group:
                group.create_task(cut_off.committer.commit(submission("a")))
                await asyncio.sleep(0.1)
                await other.committer.commit(submission("b", node="n2"))
                await cut_off.mirror.reached(etcd.revision)
                late = group.create_task(cut_off.committer.commit(noted(seen, "c", needs=needs)))
                await asyncio.sleep(0.1)
                cut_off.store.heal()
            assert isinstance(late.result(), Committed)
            assert check_schedule(etcd.snapshot_kvs()) == []

    in_virtual_time(main)
    assert seen == [{"a"}] * is_calm + [{"a", "b"}] * (not is_calm or bool(needs))


def test_what_is_committed_is_told_though_the_watch_is_stuck() -> None:
    """The answer waits for the mirror for a while; it is no failure that the mirror is late."""

    async def main() -> None:
        async with peers(memory_bytes=64 * GIB) as (etcd, [peer]):
            peer.store.stick()
            outcome = await peer.committer.commit(submission("late"))
            assert isinstance(outcome, Committed) and outcome.revision == etcd.revision
            assert not peer.mirror.snapshot().jobs
            peer.store.stick(False)
            await peer.mirror.reached(outcome.revision)
            assert len(peer.mirror.snapshot().jobs) == 1

    in_virtual_time(main)


def test_decisions_do_not_run_away_from_the_mirror() -> None:
    """Only so many batches are decided on top of what it shows; the others come once it does."""

    async def main() -> None:
        async with peers(memory_bytes=64 * GIB) as (etcd, [peer]):
            before = etcd.revision
            peer.store.stick()
            tasks: list[asyncio.Task[object]] = []
            for number in range(3 * LINKS_MAX):
                decide = submission(f"j{number}")
                tasks.append(asyncio.create_task(peer.committer.commit(decide)))
                await asyncio.sleep(0.01)
            assert etcd.revision == before + LINKS_MAX
            peer.store.stick(False)
            outcomes = await asyncio.gather(*tasks)
            assert all(isinstance(outcome, Committed) for outcome in outcomes)
            assert len(peer.mirror.snapshot().jobs) == 3 * LINKS_MAX

    in_virtual_time(main)


class BusyClock(SimClock):
    """Of a machine on which time passes between any two looks at the clock."""

    passed = 0.0

    def boot(self) -> float:
        self.passed += 0.04
        return super().boot() + self.passed


def test_what_takes_long_to_lay_over_the_mirror_is_laid_over_it_less_often() -> None:
    """Decisions go on from our own batch for ten times as long as asking the mirror took."""

    async def main() -> None:
        async with peers() as (etcd, [peer]):
            chain = Chain(peer.mirror, BusyClock(asyncio.get_running_loop()))
            batch = chain.next_batch("commit", COMPARES_ANYWHERE)
            batch.add(creation(job(), "n1"))
            chain.add(batch)
            record = b'{"number":0,"time":1.0,"node":"n1","kind":"test","reason":""}'
            etcd.txn((), [Put(keys.event(peer.node, 0), record)])
            await peer.mirror.reached(etcd.revision)
            nexts = [chain.next_batch("next", COMPARES_ANYWHERE) for _ in range(2 * CHAIN_SHARE)]
            fresh = [found.before is batch.after for found in nexts]
            assert fresh.index(False) in (CHAIN_SHARE - 1, CHAIN_SHARE)
            assert all(web() in found.before.jobs for found in nexts)

    in_virtual_time(main)
