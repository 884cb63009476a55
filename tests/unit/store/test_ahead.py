"""A transaction that leaves before the answer to the one that it builds on."""

import asyncio
from collections.abc import Callable
from random import Random

import pytest

from ozymandias.model.instance import SlotState
from ozymandias.model.job import JobHead
from ozymandias.model.node import NodeName
from ozymandias.model.plan import JobChange, Plan
from ozymandias.model.snapshot import Snapshot
from ozymandias.ports import Ambiguous, Event, Txn, TxnResult
from ozymandias.sim.invariants import check_schedule
from ozymandias.sim.store import Cut
from ozymandias.store import keys
from ozymandias.store.commit import Committed, Decide
from tests.unit.store.rig import GIB, Peer, creation, edit, in_virtual_time, job, peers, web

SLOW, QUICK = (0.05, 0.05), (0.01, 0.01)


def noted(seen: list[str], name: str, node: str = "n1") -> Decide:
    """A job that notes whenever it is decided."""

    def decide(snapshot: Snapshot) -> Plan:
        seen.append(name)
        return creation(job(name), node)

    return decide


def scaled(instances: int) -> Decide:
    """One more instance of web on n1, so that this is the second, the third, ..."""

    def decide(snapshot: Snapshot) -> Plan:
        head = JobHead(uid="u", version=1, wanted=instances)
        new = edit(job(), "n1", instances - 1, None, SlotState.RUNNING)
        return Plan(reason="-", job=JobChange(key=web(), head=head), edits=(new,))

    return decide


async def one_after_the_other(
    peer: Peer, decides: list[Decide], between: Callable[[], object] = lambda: None
) -> list[Committed]:
    """Each is asked for while the one before it is on its way."""
    async with asyncio.TaskGroup() as group:
        tasks = []
        for decide in decides:
            tasks.append(group.create_task(peer.committer.commit(decide)))
            await asyncio.sleep(0.002)
            between()
    outcomes = [task.result() for task in tasks]
    assert all(isinstance(outcome, Committed) for outcome in outcomes)
    return [outcome for outcome in outcomes if isinstance(outcome, Committed)]


def test_the_next_leaves_before_the_answer() -> None:
    """Two travel at once, on the same node; the third waits for the first one's answer."""

    async def main() -> None:
        async with peers(memory_bytes=64 * GIB, eager=True) as (etcd, [peer]):
            loop, arrived = asyncio.get_running_loop(), list[float]()
            etcd.on_commit.append(lambda revision, events: arrived.append(loop.time()))
            peer.store.faults.latency = SLOW
            began = loop.time()
            outcomes = await one_after_the_other(
                peer, [noted([], "a"), noted([], "b"), noted([], "c")]
            )
            first = outcomes[0].revision
            assert [outcome.revision for outcome in outcomes] == [first, first + 1, first + 2]
            assert [round(at - began, 3) for at in arrived] == [0.05, 0.052, 0.15]
            assert check_schedule(etcd.snapshot_kvs()) == []

    in_virtual_time(main)


def test_who_was_told_in_turns_does_not_leave_ahead() -> None:
    """A small one waits for the answer, as long as nobody says otherwise."""

    async def main() -> None:
        async with peers(memory_bytes=64 * GIB) as (etcd, [peer]):
            loop, arrived = asyncio.get_running_loop(), list[float]()
            etcd.on_commit.append(lambda revision, events: arrived.append(loop.time()))
            peer.store.faults.latency = SLOW
            began = loop.time()
            await one_after_the_other(peer, [noted([], "a"), noted([], "b")])
            assert [round(at - began, 3) for at in arrived] == [0.05, 0.15]

    in_virtual_time(main)


def test_a_large_one_leaves_ahead_unless_races_were_lost(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Of its own accord; after a loss it waits, so that no more than one is lost at once."""
    monkeypatch.setattr("ozymandias.store.commit.AHEAD_BYTES_MIN", 1)

    async def main() -> None:
        async with peers(memory_bytes=64 * GIB) as (etcd, [peer]):
            loop, arrived = asyncio.get_running_loop(), list[float]()
            etcd.on_commit.append(lambda revision, events: arrived.append(loop.time()))
            peer.store.faults.latency = SLOW
            began = loop.time()
            await one_after_the_other(peer, [noted([], "a"), noted([], "b")])
            assert [round(at - began, 3) for at in arrived] == [0.05, 0.052]
            peer.committer._chain.broken()
            began = loop.time()
            await one_after_the_other(peer, [noted([], "c"), noted([], "d")])
            assert [round(at - began, 3) for at in arrived[2:]] == [0.05, 0.15]

    in_virtual_time(main)


def test_one_that_comes_first_is_sent_again_in_its_turn() -> None:
    """The store refuses it, since what it builds on is not there; it is not decided again."""
    seen: list[str] = []

    async def main() -> None:
        async with peers(memory_bytes=64 * GIB, eager=True) as (etcd, [peer]):
            peer.store.faults.latency = SLOW

            def hurry() -> None:
                peer.store.faults.latency = QUICK

            outcomes = await one_after_the_other(peer, [noted(seen, "a"), noted(seen, "b")], hurry)
            assert outcomes[0].revision < outcomes[1].revision
            assert check_schedule(etcd.snapshot_kvs()) == []

    in_virtual_time(main)
    assert seen == ["a", "b"]


@pytest.mark.parametrize("node", ["n1", "n2"], ids=["same-node", "another-node"])
def test_what_builds_on_a_loser_is_not_there_without_it(node: str) -> None:
    """Both are decided again, though the second touches nothing that anybody else has written."""
    seen: list[str] = []

    async def main() -> None:
        names = ["n1", "n2", "n3"]
        async with peers(names, memory_bytes=64 * GIB, eager=True) as (etcd, [slow, other, _]):
            slow.store.faults.latency = SLOW
            order: list[str] = []
            etcd.on_commit.append(lambda revision, events: order.extend(created(events)))
            async with asyncio.TaskGroup() as group:
                for name, where in (("a", "n1"), ("b", node)):
                    group.create_task(slow.committer.commit(noted(seen, name, where)))
                    await asyncio.sleep(0.002)
                await other.committer.commit(noted([], "c"))
            assert order[0] == "c" and sorted(order) == ["a", "b", "c"]
            assert check_schedule(etcd.snapshot_kvs()) == []

    in_virtual_time(main)
    assert sorted(seen) == ["a", "a", "b", "b"]


def created(events: list[Event]) -> list[str]:
    return [
        e.kv.key.split(b"/")[-2].decode()
        for e in events
        if e.kv.key.startswith(keys.VERSIONS) and e.kv.version == 1
    ]


def test_what_others_wrote_in_between_is_seen() -> None:
    """Between the two somebody else takes the node: the second loses, and is decided on that."""

    async def main() -> None:
        async with peers(["n1", "n2"], memory_bytes=3 * GIB, eager=True) as (etcd, [one, two]):
            one.store.faults.latency = SLOW
            async with asyncio.TaskGroup() as group:
                first = group.create_task(one.committer.commit(submission("a")))
                await asyncio.sleep(0.01)
                second = group.create_task(one.committer.commit(submission("b")))
                await asyncio.sleep(0.042)  # the first is there, and the second is not
                assert etcd.get(keys.job(job("a").key)) and not etcd.get(keys.job(job("b").key))
                await two.mirror.reached(etcd.revision)
                third = group.create_task(two.committer.commit(submission("c", 2 * GIB)))
            assert isinstance(first.result(), Committed)
            assert isinstance(third.result(), Committed)
            late = second.result()
            assert isinstance(late, Committed) and late.plan.is_empty, "no room is left for it"
            assert check_schedule(etcd.snapshot_kvs()) == []

    in_virtual_time(main)


def submission(name: str, memory_bytes: int = GIB, node: str = "n1") -> Decide:
    def decide(snapshot: Snapshot) -> Plan | None:
        ledger = snapshot.nodes[NodeName(node)].ledger
        free = ledger.allocatable.memory_bytes - ledger.held.resources.memory_bytes
        return creation(job(name, memory_bytes), node) if free >= memory_bytes else None

    return decide


def test_it_is_known_by_what_was_sent_on_top_of_it() -> None:
    """Its answer is lost, and all that bore its mark was written again by the one on top."""

    async def main() -> None:
        async with peers(memory_bytes=64 * GIB, eager=True) as (etcd, [peer]):
            await peer.committer.commit(noted([], "web"))
            peer.store.faults.latency = SLOW
            before, _ = etcd.revision, Deaf(peer, {1})
            outcomes = await one_after_the_other(peer, [scaled(2), scaled(3)])
            assert all(outcome.revision <= before + 2 for outcome in outcomes)
            assert etcd.revision == before + 2
            assert peer.mirror.snapshot().jobs[web()].head.wanted == 3
            assert check_schedule(etcd.snapshot_kvs()) == []

    in_virtual_time(main)


class Deaf:
    """A store's transactions, of which the answers to some are not heard."""

    def __init__(self, peer: Peer, unheard: set[int]) -> None:
        self._txn, self._unheard, self.sent = peer.store.txn, unheard, 0
        peer.store.txn = self.txn  # type: ignore[method-assign]

    async def txn(self, *args: Txn) -> TxnResult:
        self.sent += 1
        number = self.sent
        result = await self._txn(*args)  # type: ignore[arg-type]
        if number in self._unheard:
            raise Ambiguous("not heard")
        return result


@pytest.mark.parametrize("unheard", [{1}, {2}, {1, 2}, {1, 2, 3}, {2, 3}])
def test_each_is_there_once_whichever_answers_are_lost(unheard: set[int]) -> None:
    """Of the two, and of what is sent again to find out."""

    async def main() -> None:
        async with peers(memory_bytes=64 * GIB, eager=True) as (etcd, [peer]):
            await peer.committer.commit(noted([], "web"))
            peer.store.faults.latency = SLOW
            before, _ = etcd.revision, Deaf(peer, unheard)
            outcomes = await one_after_the_other(peer, [scaled(2), scaled(3)])
            assert etcd.revision == before + 2
            assert outcomes[1].revision == before + 2
            assert peer.mirror.snapshot().jobs[web()].head.wanted == 3

    in_virtual_time(main)


@pytest.mark.parametrize("seed", range(60))
def test_whatever_happens_all_are_told_the_truth(seed: int) -> None:
    """Three peers in a hurry on three nodes, slow ways, lost answers, and a way that is cut."""

    async def main() -> None:
        draw, names = Random(seed), ["n1", "n2", "n3"]
        async with peers(names, memory_bytes=24 * GIB, eager=True) as (etcd, found):
            bad, made = list[object](), list[str]()
            etcd.on_commit.append(lambda _, __: bad.extend(check_schedule(etcd.snapshot_kvs())))
            etcd.on_commit.append(lambda _, events: made.extend(created(events)))
            for peer in found:
                faults = peer.store.faults
                faults.latency = faults.watch_lag = (0.0, draw.choice((0.001, 0.02, 0.1)))
                faults.ambiguous, faults.timeout = draw.choice((0.0, 0.1, 0.4)), 1.0
                faults.unavailable = draw.choice((0.0, 0.0, 0.1))

            async def ask(number: int) -> None:
                await asyncio.sleep(draw.uniform(0.0, 0.2))
                name, peer = f"j{number}", draw.choice(found)
                try:
                    outcome = await peer.committer.commit(submission(name, GIB, draw.choice(names)))
                except Ambiguous:
                    return
                except Exception:
                    told[name] = False
                    return
                told[name] = isinstance(outcome, Committed) and not outcome.plan.is_empty

            told: dict[str, bool] = {}
            cut = draw.choice(found).store
            asyncio.get_running_loop().call_later(draw.uniform(0.0, 0.3), cut.partition, Cut.BOTH)
            asyncio.get_running_loop().call_later(1.5, cut.heal)
            async with asyncio.TaskGroup() as group:
                for number in range(60):
                    group.create_task(ask(number))
            await asyncio.sleep(30)  # what is applied late is applied by then
            assert bad == []
            assert len(made) == len(set(made))
            assert {name for name, is_there in told.items() if is_there} <= set(made)
            assert not {name for name, is_there in told.items() if not is_there} & set(made)
            for peer in found:
                assert not peer.committer._under_way and not peer.mirror._expected

    in_virtual_time(main, seed)
