"""What the loops of a node share: every change touches its instance, and no other."""

from ozymandias.core.memory import PodMemory
from ozymandias.core.pods import pod_id
from ozymandias.core.reconcile import Wanted
from ozymandias.daemon.local_pods import LocalPods
from ozymandias.model.instance import Assigned, InstanceId, SlotState
from ozymandias.model.node import Demand
from ozymandias.model.pod import ObservedPod
from ozymandias.model.record import replace
from tests.unit.daemon.one_node import NODE, WEB

ASSIGNED = Assigned(
    node=NODE,
    job=WEB,
    slot=3,
    uid="u1",
    version=1,
    generation=0,
    state=SlotState.RUNNING,
    demand=Demand(memory_bytes=1, disk_bytes=0),
)
INSTANCE = InstanceId(WEB, 3)
POD = pod_id(ASSIGNED)
NEXT = replace(ASSIGNED, version=2)


def touched(local: LocalPods) -> set[InstanceId]:
    taken = [set(wake.take()) for wake in (local.execution, local.probing, local.statuses)]
    assert taken[0] == taken[1] == taken[2]
    return taken[0]


def wanted(assigned: Assigned) -> Wanted:
    return Wanted(id=pod_id(assigned), state=assigned.state, pod=None)


def test_each_change_touches_its_instance() -> None:
    """Assigned, observed, remembered, worked on: whoever looks next is told which one it was."""
    local = LocalPods()
    memory = PodMemory(trouble="a thing")
    for change in (
        lambda: local.assign(INSTANCE, (ASSIGNED,), [wanted(ASSIGNED)]),
        lambda: local.observe(POD, ObservedPod(id=POD)),
        lambda: local.observe(POD, ObservedPod(id=POD, address="10.0.0.1")),
        lambda: local.remember(POD, memory),
        lambda: local.begin(POD),
        lambda: local.end(POD),
        lambda: local.assign(INSTANCE, (), []),
        lambda: local.remember(POD, None),
        lambda: local.observe(POD, None),
    ):
        change()
        assert touched(local) == {INSTANCE}


def test_what_is_as_it_was_touches_nothing() -> None:
    """A listing that shows the same again gives nobody work."""
    local = LocalPods()
    assert local.observe(POD, ObservedPod(id=POD, address="10.0.0.1"))
    touched(local)
    assert not local.observe(POD, ObservedPod(id=POD, address="10.0.0.1"))
    local.remember(POD, None)
    assert touched(local) == set()


def test_all_pods_of_an_instance_are_found() -> None:
    """The old version's pod, seen and not wanted, beside the new one's; gone when it is gone."""
    local = LocalPods()
    local.observe(POD, ObservedPod(id=POD))
    local.assign(INSTANCE, (NEXT,), [wanted(NEXT)])
    assert local.pods_of(INSTANCE) == (POD, pod_id(NEXT))
    local.observe(POD, None)
    assert local.pods_of(INSTANCE) == (pod_id(NEXT),)
    local.assign(INSTANCE, (), [])
    assert local.pods_of(INSTANCE) == ()
    touched(local)
    local.touch_all()
    assert touched(local) == set()
