"""What a joining node writes: who it is, and what waits because its own pods are in the way."""

from collections.abc import Mapping

from ozymandias.core.apply import apply, totals
from ozymandias.core.pods import pod_id
from ozymandias.core.schedule import plan_vacate
from ozymandias.model.instance import Assignment, SlotState
from ozymandias.model.job import Job, JobHead, JobKind
from ozymandias.model.node import Demand, Ledger, NodeName, Resources
from ozymandias.model.pod import PodId
from ozymandias.model.record import replace
from ozymandias.model.snapshot import Snapshot
from ozymandias.model.units import parse_size
from ozymandias.ports import Put
from ozymandias.store import codec, keys
from ozymandias.store.registration import Offer, prepare_registration, register, renew_offer
from tests.unit.core.builders import WEB, cluster, job, lost, node, planned, submitted, where
from tests.unit.store.rig import GIB, in_virtual_time, offer, peers

N1 = NodeName("n1")
LEASE = 7


def joined(snapshot: Snapshot, found: Mapping[PodId, Job], memory: str = "4G") -> Snapshot:
    """The assignments and the ledger of n1 after it has joined with these pods, none running."""
    presence = node("n1").presence
    assert presence is not None
    capacity = Resources(memory_bytes=parse_size(memory), disk_bytes=parse_size("10G"))
    coming = Offer(
        node=N1,
        presence=presence,
        capacity=capacity,
        reserve=Resources(),
        labels={},
        found=tuple(found),
    )
    demands = {pod: Demand.of(spec) for pod, spec in found.items()}
    transaction, _ = prepare_registration(snapshot, coming, demands, LEASE, "c")
    written = {op.key: op.value for op in transaction.then if isinstance(op, Put)}
    assignments = {
        pair: Assignment(node=pair[0], job=pair[1], groups=codec.decode_groups(written[key]))
        if (key := keys.assignment(*pair)) in written
        else before
        for pair, before in snapshot.assignments.items()
    }
    ledger = codec.decode(Ledger, written[keys.ledger(N1)])
    assert (ledger.held, ledger.promised) == totals(assignments.values())
    return replace(
        snapshot,
        assignments=assignments,
        nodes={N1: replace(snapshot.nodes[N1], ledger=ledger, presence=presence)},
    )


def of_another_machine(*jobs: Job, memory: str = "4G") -> Snapshot:
    """One node that is away, with what it was given when another machine had its name."""
    return lost(submitted(cluster(n1=memory), *jobs), "n1")


def stranger(snapshot: Snapshot, slot: int) -> PodId:
    """A pod of the job's first instance's kind, under another number."""
    return pod_id(next(snapshot.instances(WEB)))._replace(slot=slot)


def test_what_needs_a_found_pods_host_port_waits() -> None:
    """It runs when the pod is gone; before, the port would have two owners."""
    web = job(host_port=8080)
    before = of_another_machine(web)
    after = joined(before, {stranger(before, 1): web})
    assert where(after) == {"0": "n1 v1 waiting", "1*": "n1 v1 stopping"}
    assert len(after.nodes[N1].ledger.held.host_ports) == 1


def test_what_has_no_room_beside_a_found_pod_waits_and_what_has_runs() -> None:
    """Of two instances of 1.5G one fits beside a pod of 2G on 4G."""
    before = of_another_machine(job(instances=2, memory="1536M"))
    after = joined(before, {stranger(before, 5): job(memory="2G")})
    assert where(after) == {"0": "n1 v1 running", "1": "n1 v1 waiting", "5*": "n1 v1 stopping"}
    assert after.nodes[N1].ledger.held.resources.memory_bytes <= 4 * GIB


def test_an_instance_waits_for_its_own_other_run() -> None:
    """The same number, restarted on the other machine: what is here has to end first."""
    before = of_another_machine(job())
    other_run = stranger(before, 0)._replace(generation=5)
    after = joined(before, {other_run: job()})
    assert where(after) == {"0": "n1 v1 waiting", "0*": "n1 v1 stopping"}


def test_a_system_job_waits_for_another_of_its_pods() -> None:
    """Under another number there is room for both, and still a node never has two of them."""
    dns = job(kind=JobKind.SYSTEM, instances=0)
    before = of_another_machine(dns)
    other = stranger(before, 1)
    after = joined(before, {other: dns})
    assert where(after) == {"0": "n1 v1 waiting", "1*": "n1 v1 stopping"}
    assert plan_vacate(after, N1, frozenset({other})) is None
    after = apply(after, planned(plan_vacate(after, N1, frozenset())))
    assert where(after) == {"0": "n1 v1 running"}


def test_what_is_here_goes_on_whatever_is_found_beside_it() -> None:
    """Both are there and run already: nothing is gained by waiting."""
    web = job(memory="2G")
    before = of_another_machine(web)
    here = pod_id(next(before.instances(WEB)))
    found = {here: web, here._replace(slot=1): job(memory="3G")}
    states = {a.slot: a.state for a in joined(before, found).instances()}
    assert states == {0: SlotState.RUNNING, 1: SlotState.STOPPING}


def test_on_a_node_that_is_promised_too_much_nothing_waits() -> None:
    """A smaller machine under the same name: the wait for room would never end."""
    before = of_another_machine(job(instances=3))
    after = joined(before, {stranger(before, 5): job()}, memory="2G")
    waiting = [a for a in after.instances() if a.state is SlotState.WAITING]
    assert not waiting


def test_without_strangers_nothing_is_rewritten() -> None:
    """What is assigned and not there yet is simply started."""
    before = of_another_machine(job(instances=2, host_port=None))
    assert joined(before, {}).assignments == before.assignments
    assert len(list(before.assignments[N1, WEB].instances)) == 2


def test_a_ledger_names_the_machine_that_joined_and_its_lease() -> None:
    """Who joins is who had the name last, for whoever wants it next."""
    ledger = joined(of_another_machine(job()), {}).nodes[N1].ledger
    assert (ledger.machine, ledger.lease) == ("n1", LEASE)


def test_a_ledger_from_before_learns_its_machine_when_a_daemon_goes_on_with_its_lease() -> None:
    """That is how an older version's records come to know it, without a lapse."""

    async def main() -> None:
        async with peers() as (etcd, [peer]):
            key = keys.ledger(peer.node)
            ledger = replace(peer.mirror.snapshot().nodes[peer.node].ledger, machine="", lease=0)
            done = await peer.store.txn((), [Put(key, codec.encode(ledger))])
            await peer.mirror.reached(done.revision)
            same = offer(peer.node, 4 * GIB)
            assert await renew_offer(peer.store, peer.mirror, same, (), "renewed")
            record = etcd.get(key)
            assert record is not None
            assert codec.decode(Ledger, record.value).machine == same.presence.machine_id
            await peer.store.revoke(peer.lease)
            await peer.mirror.reached(etcd.revision)
            lease = await peer.store.grant(60)
            other = replace(same, presence=replace(same.presence, machine_id="other"))
            assert await register(peer.store, peer.mirror, other, lease.id, "joined")
            await peer.mirror.reached(etcd.revision)
            found = peer.mirror.snapshot().nodes[peer.node].ledger
            assert (found.machine, found.lease) == ("other", lease.id)

    in_virtual_time(main)


def test_a_head_that_is_rewritten_as_it_is_is_no_longer_of_its_last_commit() -> None:
    """Whoever asks for that commit's fate would take this revision for its own (seed 721291)."""
    snapshot = of_another_machine(job())
    pod = stranger(snapshot, 1)
    presence = node("n1").presence
    assert presence is not None
    coming = replace(offer(N1, 4 * GIB), presence=presence, found=(pod,))
    transaction, _ = prepare_registration(snapshot, coming, {pod: Demand()}, LEASE, "joined")
    written = {op.key: op.value for op in transaction.then if isinstance(op, Put)}
    before = snapshot.jobs[WEB].head
    assert codec.decode(JobHead, written[keys.job(WEB)]) == replace(before, commit="joined")
    assert before.commit != "joined"
