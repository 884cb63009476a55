"""A transaction that leaves before the answer to the one that it builds on."""

import asyncio
import gc
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from random import Random
from weakref import ref

import pytest

from ozymandias.core.routes import Names
from ozymandias.model.instance import SlotState
from ozymandias.model.job import Job, JobHead
from ozymandias.model.node import Ledger, Node, NodeName, Presence, Resources
from ozymandias.model.plan import JobChange, Plan
from ozymandias.model.snapshot import Snapshot
from ozymandias.ports import (
    Ambiguous,
    Compare,
    Event,
    LeaseLost,
    NoSpace,
    Op,
    StoreError,
    TooLarge,
    TxnResult,
    Unavailable,
)
from ozymandias.problems import Problem
from ozymandias.sim.etcd import REQUEST_BYTES_MAX, SimEtcd
from ozymandias.sim.invariants import check_schedule
from ozymandias.sim.store import Cut
from ozymandias.store import keys
from ozymandias.store.batch import Batch, Reach
from ozymandias.store.chain import LINKS_MAX
from ozymandias.store.commit import AHEAD_BYTES_MAX, UNDER_WAY_MAX, Committed, Decide
from ozymandias.store.etcd_bytes import txn_request
from ozymandias.store.transaction import completed, drafted
from ozymandias.telemetry import COMMITS
from tests.unit.store.rig import GIB, Peer, creation, edit, in_virtual_time, job, peers, web
from tests.unit.store.test_others import fresh

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
            peer.committer._chain.broken(Batch(Snapshot(), ""))
            began = loop.time()
            await one_after_the_other(peer, [noted([], "c"), noted([], "d")])
            assert [round(at - began, 3) for at in arrived[2:]] == [0.05, 0.15]

    in_virtual_time(main)


@pytest.mark.parametrize(("node", "seconds"), [("n1", 0.15), ("n2", 0.052)])
def test_one_that_compares_too_much_by_value_waits(
    node: str, seconds: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The store would refuse it for its size; where it goes to another node it is small enough."""
    large = Reach.of(creation(job("b"), node)).size_bytes
    monkeypatch.setattr("ozymandias.store.commit.AHEAD_BYTES_MAX", large)

    async def main() -> None:
        async with peers(["n1", "n2"], memory_bytes=64 * GIB, eager=True) as (etcd, [peer, _]):
            loop, arrived = asyncio.get_running_loop(), list[float]()
            etcd.on_commit.append(lambda revision, events: arrived.append(loop.time()))
            peer.store.faults.latency = SLOW
            began = loop.time()
            await one_after_the_other(peer, [noted([], "a"), noted([], "b", node)])
            assert [round(at - began, 3) for at in arrived] == [0.05, seconds]

    in_virtual_time(main)


def test_what_leaves_ahead_is_never_refused_for_its_size() -> None:
    """Every node is in the one before it, too: their ledgers are compared whole, by value."""
    sizes = []
    for number in range(600, 1300, 50):
        nodes = [NodeName(f"node-{n:05d}") for n in range(number)]
        first = placed_on(nodes, Snapshot(nodes={name: any_node(name) for name in nodes}))
        second = placed_on(nodes, first.after, first)
        transaction = completed(drafted(second, Names()), second, ())
        if second.size_ahead_bytes <= AHEAD_BYTES_MAX:
            sizes.append(len(txn_request(transaction.compare, transaction.then, ())))
    assert REQUEST_BYTES_MAX * 3 // 4 < max(sizes) <= REQUEST_BYTES_MAX


def any_node(name: NodeName) -> Node:
    resources, labels = Resources(memory_bytes=2**38, disk_bytes=2**41), {"zone": "europe-1a"}
    ledger = Ledger(capacity=resources, labels=labels, machine=32 * "a", lease=2**62)
    here = Presence(address="", machine_id="", session="", daemon_version="", api="")
    return Node(
        name=name, ledger=ledger, ledger_revision=10**9, presence=here, presence_revision=10**9
    )


def placed_on(nodes: list[NodeName], before: Snapshot, beneath: Batch | None = None) -> Batch:
    """A new job, once on each of them; on top of another one, which was sent."""
    batch = Batch(before, 16 * "f", beneath=beneath.wrote() if beneath else None)
    spec = job("second" if beneath else "first")
    edits = [edit(spec, n, i, None, SlotState.RUNNING) for i, n in enumerate(nodes)]
    batch.add(Plan(reason="-", job=creation(spec, "-", ()).job, edits=tuple(edits)))
    batch.then, batch.links = drafted(batch, Names()).then, (beneath,) if beneath else ()
    return batch


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
            before, _ = etcd.revision, Ways(peer, {1: LOST})
            outcomes = await one_after_the_other(peer, [scaled(2), scaled(3)])
            assert all(outcome.revision <= before + 2 for outcome in outcomes)
            assert etcd.revision == before + 2
            assert peer.mirror.snapshot().jobs[web()].head.wanted == 3
            assert check_schedule(etcd.snapshot_kvs()) == []

    in_virtual_time(main)


def test_it_is_known_by_the_answer_to_what_was_sent_on_top_of_it() -> None:
    """Its own is lost, and by the time it is asked for others have rewritten all that both did."""

    async def main() -> None:
        async with peers(["n1", "n2"], memory_bytes=64 * GIB, eager=True) as (etcd, [peer, other]):
            await peer.committer.commit(noted([], "web"))
            Ways(peer, {1: Fate(back=0.5, error=LOST.error)})
            asking = asyncio.create_task(asked(peer, [scaled(2), scaled(3)]))
            await asyncio.sleep(0.1)
            await other.mirror.reached(etcd.revision)
            await other.committer.commit(scaled(4))
            assert [type(one) for one in await asking] == [Committed, Committed]
            await check_all(etcd, peer)

    in_virtual_time(main)


@dataclass(frozen=True, slots=True)
class Fate:
    """What becomes of a transaction on its way."""

    there: float = 0.0  # seconds until it is carried out, if it is
    back: float = 0.0  # and until that is told
    error: Exception | None = None  # that it ends in instead
    is_applied: bool = True
    later: float = 0.0  # so many seconds after it was told


LOST = Fate(error=Ambiguous("not heard"))


class Ways:
    """A peer's transactions, each of which has its fate; the first has number 1."""

    def __init__(self, peer: Peer, fates: dict[int, Fate]) -> None:
        self._txn, self._fates, self._sent = peer.store.txn, fates, 0
        peer.store.txn = self.txn  # type: ignore[method-assign]

    async def txn(
        self, compare: Sequence[Compare], then: Sequence[Op], otherwise: Sequence[Op] = ()
    ) -> TxnResult:
        self._sent += 1
        fate = self._fates.get(self._sent, Fate())
        carry_out = partial(self._txn, compare, then, otherwise)
        await asyncio.sleep(fate.there)
        result = await carry_out() if fate.is_applied and not fate.later else TxnResult(False, 0)
        await asyncio.sleep(fate.back)
        if fate.later:
            loop = asyncio.get_running_loop()
            loop.call_later(fate.later, lambda: loop.create_task(carry_out()))
        if fate.error:
            raise fate.error
        return result


def unheard_so_far() -> float:
    """As the metrics tell it."""
    [samples] = [metric.samples for metric in COMMITS.collect()]
    told = {s.labels["outcome"]: s.value for s in samples if s.name.endswith("_total")}
    return told.get("ambiguous", 0.0)


def test_every_answer_that_never_came_is_counted() -> None:
    """Of what was sent in its turn, and of what left ahead of it."""
    before = unheard_so_far()

    async def main() -> None:
        async with peers(memory_bytes=64 * GIB, eager=True) as (_, [peer]):
            await peer.committer.commit(noted([], "web"))
            peer.store.faults.latency = SLOW
            Ways(peer, {1: LOST, 2: LOST})
            await one_after_the_other(peer, [scaled(2), scaled(3)])

    in_virtual_time(main)
    assert unheard_so_far() == before + 2


@pytest.mark.parametrize("unheard", [{1}, {2}, {1, 2}, {1, 2, 3}, {2, 3}])
def test_each_is_there_once_whichever_answers_are_lost(unheard: set[int]) -> None:
    """Of the two, and of what is sent again to find out."""

    async def main() -> None:
        async with peers(memory_bytes=64 * GIB, eager=True) as (etcd, [peer]):
            await peer.committer.commit(noted([], "web"))
            peer.store.faults.latency = SLOW
            before, _ = etcd.revision, Ways(peer, dict.fromkeys(unheard, LOST))
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
                full = Fate(error=NoSpace("full"), is_applied=False)
                Ways(peer, {number: full for number in range(1, 99) if draw.random() < 0.1})

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
                await check_all(etcd, peer)

    in_virtual_time(main, seed)


@pytest.mark.parametrize("seed", range(100))
def test_whoever_asks_for_one_more_gets_one_more(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Once if it is told so, never if it is told not: whichever answers are lost, or come late."""
    draw = Random(seed)
    monkeypatch.setattr("ozymandias.store.sending.LOOKED_AT_MAX", draw.choice((1, 2, 32)))
    wanted, names = [f"j{number}" for number in range(3)], ["n1", "n2", "n3"]
    sure, maybe = dict.fromkeys(wanted, 0), dict.fromkeys(wanted, 0)

    async def ask(found: list[Peer]) -> None:
        await asyncio.sleep(draw.uniform(0.0, 0.5))
        name, on = draw.choice(wanted), draw.sample(names, draw.choice((1, 2)))
        ends = draw.random() < 0.2
        try:
            outcome = await draw.choice(found).committer.commit(end if ends else more(name, on, []))
        except Ambiguous:
            maybe[name] += 0 if ends else len(on)
        except StoreError:
            pass
        else:
            sure[name] += 0 if ends else len(on)
            assert isinstance(outcome, Committed)

    async def main() -> None:
        async with peers(names, memory_bytes=640 * GIB, eager=True) as (etcd, found):
            for name in (*wanted, "idle"):
                await found[0].committer.commit(partial(made, job(name)))
            for peer in found:
                await peer.mirror.reached(etcd.revision)
                peer.store.faults.watch_lag = (0.0, draw.choice((0.0, 0.05, 0.3)))
                peer.store.faults.latency = (0.0, draw.choice((0.0, 0.01, 0.05)))
                rate = draw.choice((0.05, 0.2, 0.5))
                Ways(peer, {n: any_fate(draw) for n in range(1, 99) if draw.random() < rate})
            async with asyncio.TaskGroup() as group:
                for _ in range(draw.choice((10, 40))):
                    group.create_task(ask(found[: draw.choice((1, 3))]))
            await asyncio.sleep(30)  # what is applied late is applied by then
            for peer in found:
                await check_all(etcd, peer)
            for name in wanted:
                number = found[0].mirror.snapshot().jobs[job(name).key].head.wanted
                assert sure[name] <= number <= sure[name] + maybe[name]

    in_virtual_time(main, seed)


def any_fate(draw: Random) -> Fate:
    there, back = draw.choice((0.0, 0.0, 0.05, 0.2)), draw.choice((0.0, 0.0, 0.05, 0.3))
    refused, lost = (NoSpace("full"), Unavailable("away")), Ambiguous("not heard")
    return draw.choice(
        (
            Fate(there, back),
            Fate(there, back, lost),
            Fate(there, back, lost, is_applied=False),
            Fate(there, back, lost, later=draw.choice((0.01, 0.1, 0.4))),
            Fate(there, back, draw.choice(refused), is_applied=False),
        )
    )


def made(spec: Job, snapshot: Snapshot) -> Plan:
    return creation(spec, "n1", ())


def end(snapshot: Snapshot) -> Plan | None:
    """A job that is nowhere: nothing but its head is written, and that is deleted."""
    key = job("idle").key
    gone = Plan(reason="-", job=JobChange(key=key, head=None))
    return gone if key in snapshot.jobs else None


# What the one on top does not know ----------------------------------------------------------------


async def check_all(etcd: SimEtcd, peer: Peer) -> None:
    """The mirror shows what is there, and nothing is left of what was on its way."""
    await peer.mirror.reached(etcd.revision)
    assert check_schedule(etcd.snapshot_kvs()) == []
    assert peer.mirror.snapshot() == await fresh(peer)
    assert not peer.committer._under_way and not peer.mirror._expected


async def asked(peer: Peer, decides: Sequence[Decide]) -> list[Committed | Problem | BaseException]:
    """Each a moment after the one before it; what they were told."""
    tasks = []
    for decide in decides:
        tasks.append(asyncio.create_task(peer.committer.commit(decide)))
        await asyncio.sleep(0.03)
    return await asyncio.gather(*tasks, return_exceptions=True)


def more(name: str, nodes: Sequence[str], seen: list[str]) -> Decide:
    """One more instance on each: done twice, there are too many."""
    spec = job(name)

    def decide(snapshot: Snapshot) -> Plan:
        seen.append(name)
        wanted = snapshot.jobs[spec.key].head.wanted
        head = JobHead(uid="u", version=1, wanted=wanted + len(nodes))
        new = [edit(spec, n, wanted + i, None, SlotState.RUNNING) for i, n in enumerate(nodes)]
        return Plan(reason="-", job=JobChange(key=spec.key, head=head), edits=tuple(new))

    return decide


def test_what_fails_takes_only_what_is_on_top_of_it_along() -> None:
    """Not the one beneath: what comes next is decided with that, and the mirror shows both."""

    async def main() -> None:
        async with peers(["n1", "n2"], memory_bytes=64 * GIB, eager=True) as (etcd, [peer, _]):
            Ways(peer, {1: Fate(there=0.2), 2: Fate(error=NoSpace("full"), is_applied=False)})
            told = await asked(peer, [noted([], "a"), noted([], "b"), noted([], "c", "n2")])
            assert [type(one) for one in told] == [Committed, NoSpace, Committed]
            await check_all(etcd, peer)

    in_virtual_time(main)


def test_what_was_on_top_of_a_doubt_is_somebody_elses() -> None:
    """It is there though what it builds on was given up, and what came next does not know it."""

    async def main() -> None:
        async with peers(["n1", "n2"], memory_bytes=64 * GIB, eager=True) as (etcd, [peer, _]):
            slow, first = Fate(there=0.5), Fate(back=0.1, error=LOST.error)
            Ways(peer, {1: first, 2: slow, **dict.fromkeys([3, 4, 5, 6], LOST)})
            told = await asked(peer, [noted([], "a"), noted([], "b"), noted([], "c", "n2")])
            assert [type(one) for one in told] == [Ambiguous, Committed, Committed]
            await check_all(etcd, peer)

    in_virtual_time(main)


def test_nobody_goes_on_from_what_lacks_a_doubt_beneath() -> None:
    """The one on top has its answer, the one beneath never, but is known by that: both are seen."""
    seen: list[set[str]] = []

    def look(snapshot: Snapshot) -> Plan:
        seen.append({key.name for key in snapshot.jobs})
        return creation(job("c"), "n1")

    async def main() -> None:
        async with peers(memory_bytes=64 * GIB, eager=True) as (etcd, [peer]):
            peer.store.faults.watch_lag = (1.0, 1.0)
            Ways(peer, {1: Fate(back=0.1, error=LOST.error), **dict.fromkeys([3, 4, 5, 6], LOST)})
            first = asyncio.create_task(asked(peer, [noted([], "a"), noted([], "b")]))
            await asyncio.sleep(0.4)
            assert isinstance(await peer.committer.commit(look), Committed)
            assert [type(one) for one in await first] == [Committed, Committed]
            await check_all(etcd, peer)

    in_virtual_time(main)
    assert seen
    assert all(names == {"a", "b"} for names in seen)


def test_a_doubt_outlives_the_lease() -> None:
    """Its answer is lost, and the lease before it is asked for again: it is there all the same."""

    def no_session() -> tuple[Compare, ...]:
        raise LeaseLost("no session")

    async def main() -> None:
        async with peers(memory_bytes=64 * GIB, eager=True) as (etcd, [peer]):
            Ways(peer, {1: Fate(back=0.5), 2: LOST})
            asking = asyncio.create_task(asked(peer, [noted([], "a"), noted([], "b")]))
            await asyncio.sleep(0.3)
            peer.committer._fence = no_session
            assert [type(one) for one in await asking] == [Committed, Committed]
            await check_all(etcd, peer)

    in_virtual_time(main)


def test_what_waited_too_long_is_decided_again() -> None:
    """As whatever waits for the answer to the one before it: it relies on more than is compared."""
    seen: list[str] = []

    async def main() -> None:
        async with peers(memory_bytes=64 * GIB, eager=True) as (etcd, [peer]):
            Ways(peer, {1: Fate(there=5.0)})
            told = await asked(peer, [noted([], "a"), noted(seen, "b")])
            assert [type(one) for one in told] == [Committed, Committed]
            await check_all(etcd, peer)

    in_virtual_time(main)
    assert seen == ["b", "b"]


def test_a_revision_told_by_the_one_on_top_is_not_compared(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It is not its own: the third would be taken for lost, decided again, and be there twice."""
    monkeypatch.setattr("ozymandias.store.sending.LOOKED_AT_MAX", 1)
    seen: list[str] = []

    async def main() -> None:
        async with peers(["n1", "n2"], memory_bytes=64 * GIB, eager=True) as (etcd, [peer, _]):
            await peer.committer.commit(noted([], "web"))
            peer.store.faults.watch_lag = (1.0, 1.0)
            late = Fate(back=0.05, error=LOST.error, later=0.3)
            Ways(peer, {1: Fate(back=0.1, error=LOST.error), 3: late, 6: Fate(there=0.5)})
            both = Plan(
                reason="-",
                job=creation(job("a"), "n1", (0, 1)).job,
                edits=tuple(
                    edit(job("a"), node, slot, None, SlotState.RUNNING)
                    for slot, node in enumerate(("n1", "n2"))
                ),
            )
            decides = [lambda snapshot: both, noted([], "b"), more("web", ["n1", "n2"], seen)]
            told = await asked(peer, decides)
            assert [type(one) for one in told] == [Committed, Committed, Committed]
            await asyncio.sleep(5)
            assert peer.mirror.snapshot().jobs[web()].head.wanted == 3
            await check_all(etcd, peer)

    in_virtual_time(main)
    assert seen == ["web"]


def test_a_doubt_above_ends_with_what_is_surely_not_beneath_it() -> None:
    """The first one never reached the store: the second, not heard of, is decided again."""
    seen: list[str] = []

    async def main() -> None:
        async with peers(memory_bytes=64 * GIB, eager=True) as (etcd, [peer]):
            away = Fate(back=0.1, error=Unavailable("away"), is_applied=False)
            Ways(peer, {1: away, 2: LOST})
            told = await asked(peer, [noted([], "a"), noted(seen, "b")])
            assert [type(one) for one in told] == [Unavailable, Committed]
            await check_all(etcd, peer)

    in_virtual_time(main)
    assert seen == ["b", "b"]


def test_what_is_too_large_ahead_is_not_too_large_in_its_turn() -> None:
    """It is refused with what it compares by value, and nobody is told that of the plan."""
    seen: list[str] = []

    async def main() -> None:
        async with peers(memory_bytes=64 * GIB, eager=True) as (etcd, [peer]):
            refused = Fate(error=TooLarge("request is too large"), is_applied=False)
            Ways(peer, {1: Fate(there=0.1), 2: refused})
            told = await asked(peer, [noted([], "a"), noted(seen, "b")])
            assert [type(one) for one in told] == [Committed, Committed]
            await check_all(etcd, peer)

    in_virtual_time(main)
    assert seen == ["b"]


def test_nothing_is_kept_of_those_long_beneath() -> None:
    """While one leaves on top of the other without a pause, each on what the former left behind."""
    found: dict[str, ref[Batch]] = {}

    async def main() -> None:
        async with peers(memory_bytes=640 * GIB, eager=True) as (etcd, [peer]):
            committer = peer.committer

            def note(revision: int, events: list[Event]) -> None:
                found.update({link.commit: ref(link) for link in committer._chain.links})

            etcd.on_commit.append(note)
            peer.store.faults.latency = SLOW
            asking = asyncio.create_task(asked(peer, [noted([], f"j{n}") for n in range(60)]))
            while len(found) < 3 * LINKS_MAX:
                await asyncio.sleep(0.05)
            gc.collect()
            assert len([batch for batch in found.values() if batch()]) <= LINKS_MAX + UNDER_WAY_MAX
            assert committer._under_way
            assert {type(one) for one in await asking} == {Committed}

    in_virtual_time(main)


def test_a_doubt_beneath_is_one_above_whatever_ends_it() -> None:
    """The store takes no more before the first is found: the second is not decided again."""
    seen: list[str] = []

    async def main() -> None:
        async with peers(memory_bytes=64 * GIB, eager=True) as (etcd, [peer]):
            await peer.committer.commit(noted([], "web"))
            full = Fate(error=NoSpace("full"), is_applied=False)
            Ways(peer, {1: Fate(back=0.1, error=LOST.error), 2: LOST, 3: full})
            told = await asked(peer, [noted([], "a"), more("web", ["n1"], seen)])
            assert [type(one) for one in told] == [Ambiguous, Ambiguous]
            assert peer.mirror.snapshot().jobs[web()].head.wanted == 2
            await check_all(etcd, peer)

    in_virtual_time(main)
    assert seen == ["web"]


def test_what_can_be_there_alone_does_not_leave_ahead() -> None:
    """Of one that did no more than delete a job nothing can be compared, but that it has gone."""
    seen: list[str] = []

    async def main() -> None:
        async with peers(["n1", "n2"], memory_bytes=64 * GIB, eager=True) as (etcd, [peer, other]):
            await peer.committer.commit(noted([], "web"))
            await peer.committer.commit(partial(made, job("idle")))
            await other.mirror.reached(etcd.revision)
            Ways(peer, {1: Fate(there=0.2), 2: LOST})
            asking = asyncio.create_task(asked(peer, [end, more("web", ["n1"], seen)]))
            await asyncio.sleep(0.1)
            await other.committer.commit(end)
            told = await asking
            assert [type(one) for one in told] == [Committed, Committed]
            assert peer.mirror.snapshot().jobs[web()].head.wanted == 2
            await check_all(etcd, peer)

    in_virtual_time(main)
