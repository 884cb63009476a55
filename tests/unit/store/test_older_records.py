"""What a version before processors and neighbours wrote still means what it meant."""

from ozymandias.model.job import JobVersion
from ozymandias.model.node import Demand, Ledger
from ozymandias.store import codec
from tests.unit.core.builders import cluster, job, node, submitted


def test_a_ledger_without_processors_counts_none() -> None:
    """Its node has no cores to share out, so nobody is refused for them."""
    old = b'{"capacity":{"memory_bytes":4096,"disk_bytes":10},"held":{"resources":{}}}'
    ledger = codec.decode(Ledger, old)
    assert ledger.allocatable.cpu_millis == 0
    assert Demand(cpu_millis=64_000).resources.fits_in(ledger.allocatable) is True


def test_instances_from_before_hold_no_processors() -> None:
    """What they hold is read as it was written, whatever their job asks for now."""
    snapshot = submitted(cluster(node("n1", cpu=2000)), job())
    (assignment,) = snapshot.assignments.values()
    text = codec.encode(assignment.groups).replace(b',"cpu_millis":0', b"")
    assert b"cpu" not in text
    (group,) = codec.decode_groups(text)
    assert group.demand.cpu_millis == 0


def test_a_job_without_neighbours() -> None:
    """A placement of labels alone has neither neighbours nor a burst."""
    old = (
        b'{"uid":"u","version":1,"job":{"name":"web","placement":{"max_per_node":2},'
        b'"containers":[{"name":"a","image":"x"}]}}'
    )
    rules = codec.decode(JobVersion, old).job.placement
    assert (rules.max_per_node, rules.near, rules.apart, rules.spread, rules.burst) == (
        2,
        (),
        (),
        "",
        None,
    )
