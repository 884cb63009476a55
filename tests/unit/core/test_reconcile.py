"""Reconciling: tables of (state, actions), and what holds on any way to what is wanted."""

from collections.abc import Sequence
from dataclasses import dataclass, field

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ozymandias.core import memory as memories
from ozymandias.core.memory import NOTHING, PodMemory
from ozymandias.core.pods import start_order
from ozymandias.core.reconcile import Wanted, by_pod, reconcile
from ozymandias.model.instance import SlotState
from ozymandias.model.job import Condition, Container, RestartMode
from ozymandias.model.plan import Action, ActionKind
from ozymandias.model.pod import ContainerState, ObservedContainer, ObservedPod, Pod, PodId
from ozymandias.model.record import replace
from tests.unit.core.node_side import HTTP, container, job, observed, pod, wanted, with_container

K = ActionKind
CREATED, RUNNING, EXITED = ContainerState.CREATED, ContainerState.RUNNING, ContainerState.EXITED
STOPPING, WAITING = SlotState.STOPPING, SlotState.WAITING
APP_DB = job(container("app", after=("db",)), container("db"))
APP_AFTER_HEALTHY_DB = job(
    container("app", after=("db",), condition=Condition.HEALTHY), container("db", check=HTTP)
)


def steps(
    want: Sequence[Wanted],
    seen: Sequence[ObservedPod] = (),
    memory: dict[PodId, PodMemory] | None = None,
    now: float = 100.0,
    *,
    has_session: bool = True,
) -> list[str]:
    agenda = reconcile(want, {p.id: p for p in seen}, memory or {}, now, has_session=has_session)
    return [f"{a.kind} {a.container}".strip() for a in agenda.actions]


def test_a_missing_pod_is_made_and_started_in_one_go() -> None:
    """Create is followed at once by the starts that need no event in between."""
    assert steps([wanted(APP_DB)]) == ["create", "start db", "start app"]


def test_a_dependant_waits_for_health() -> None:
    """With `condition: healthy` the dependant starts when the other is healthy, not before."""
    want, made = wanted(APP_AFTER_HEALTHY_DB), pod(APP_AFTER_HEALTHY_DB)
    assert steps([want]) == ["create", "start db"]
    seen = observed(made, db=RUNNING)
    memory = memories.take_in(NOTHING, made, seen, now=1.0, wall=1.0)
    assert steps([want], [seen], {made.id: memory}) == []
    memory = memories.probed(
        memory, made.id, made.job.container("db"), passed=True, reason="", now=2.0
    )
    assert steps([want], [seen], {made.id: memory}) == ["start app"]


@pytest.mark.parametrize(
    ("state", "seen", "expected"),
    [
        (STOPPING, [], []),
        (WAITING, [], []),
        (WAITING, [observed(pod(), app=RUNNING)], ["stop"]),
        (STOPPING, [observed(pod(), app=EXITED)], ["remove"]),
        (STOPPING, [observed(pod(), app=RUNNING)], []),  # not drained yet
    ],
)
def test_slots_that_do_not_run(
    state: SlotState, seen: list[ObservedPod], expected: list[str]
) -> None:
    """Waiting slots run nothing, stopping ones are stopped when drained."""
    assert steps([wanted(state=state)], seen) == expected


def test_a_drained_pod_is_stopped_when_its_time_has_come() -> None:
    """The drain is waited for, and the time to look again is its end."""
    want, seen = wanted(state=STOPPING), observed(pod(), app=RUNNING)
    memory = {seen.id: replace(NOTHING, drain_until=100.5)}
    agenda = reconcile([want], {seen.id: seen}, memory, 100.0)
    assert (agenda.actions, agenda.look_at) == ((), 100.5)
    assert steps([want], [seen], memory, 100.5) == ["stop"]


def test_what_is_not_assigned_goes() -> None:
    """Running leftovers are stopped, dead and half-made ones removed, each with a reason."""
    half = replace(observed(pod(slot=1)), is_complete=False, containers=())
    old = observed(pod(version=1, slot=2), app=RUNNING)
    seen = [observed(pod(), app=RUNNING), half, old]
    agenda = reconcile([wanted(slot=2, version=2)], {p.id: p for p in seen}, {}, 0.0)
    assert [(a.kind, a.reason) for a in agenda.actions] == [
        (K.STOP, "not assigned to this node"),
        (K.REMOVE, "half made; not assigned to this node"),
        (K.STOP, "left from version 1.0"),
    ]


def test_a_slot_is_not_run_twice() -> None:
    """The next version of a slot is made once the pod of the former one is gone."""
    old = observed(pod(version=1), app=RUNNING)
    assert steps([wanted(version=2)], [old]) == ["stop"]
    assert steps([wanted(version=2)]) == ["create", "start app"]


def test_a_half_made_pod_is_made_again() -> None:
    """A create that was cut short is done over; creating removes what is left."""
    half = replace(observed(pod()), is_complete=False, containers=())
    assert steps([wanted()], [half]) == ["create", "start app"]


def test_without_a_session_only_what_ended_is_started_again() -> None:
    """No session: nothing is made, first started, stopped or removed; crashes are mended."""
    made = pod()
    end = with_container(observed(made), ObservedContainer(name="app", state=EXITED, exit_code=1))
    memory = {made.id: memories.take_in(NOTHING, made, end, now=0.0, wall=0.0)}
    assert steps([wanted()], [end], memory, has_session=False) == ["start app"]
    assert steps([wanted()], has_session=False) == []
    assert steps([wanted()], [observed(made)], has_session=False) == []
    assert steps([], [observed(made, app=RUNNING)], has_session=False) == []
    drained = {made.id: replace(NOTHING, drain_until=0.0)}
    running = observed(made, app=RUNNING)
    assert steps([wanted(state=STOPPING)], [running], drained, has_session=False) == []


def test_a_pod_that_vanished_is_made_as_if_new() -> None:
    """What was known of containers that are gone does not count for the new ones."""
    made = pod(APP_AFTER_HEALTHY_DB)
    seen = observed(made, db=RUNNING, app=RUNNING)
    memory = memories.take_in(NOTHING, made, seen, now=1.0, wall=1.0)
    memory = memories.probed(
        memory, made.id, made.job.container("db"), passed=True, reason="", now=2.0
    )
    assert steps([wanted(APP_AFTER_HEALTHY_DB)], [], {made.id: memory}) == ["create", "start db"]


def test_back_off_is_waited_for() -> None:
    """A failed attempt and an ended container each have their time, which is when to look."""
    failed = {pod().id: memories.failed(NOTHING, pod().id, "no image", 100.0)}
    agenda = reconcile([wanted()], {}, failed, 100.1)
    assert (agenda.actions, agenda.look_at) == ((), failed[pod().id].retry_at)
    end = with_container(
        observed(pod()),
        ObservedContainer(name="app", state=EXITED, exit_code=1, started_at=49.0, finished_at=50.0),
    )
    memory = memories.take_in(NOTHING, pod(), end, now=100.0, wall=50.0)
    agenda = reconcile([wanted()], {end.id: end}, {end.id: memory}, 100.1)
    assert (agenda.actions, agenda.look_at) == ((), memory.run("app").due_at)
    assert steps([wanted()], [end], {end.id: memory}, 101.0) == ["start app"]


def test_an_unhealthy_container_is_restarted_alone() -> None:
    """Unhealthy and due: that container is stopped and started, its pod stays."""
    spec = job(container("app", check=replace(HTTP, unhealthy_threshold=1)), container("db"))
    made = pod(spec)
    seen = observed(made, app=RUNNING, db=RUNNING)
    memory = memories.take_in(NOTHING, made, seen, now=0.0, wall=0.0)
    memory = memories.probed(
        memory, made.id, spec.containers[0], passed=False, reason="HTTP 500", now=20.0
    )
    agenda = reconcile([wanted(spec)], {made.id: seen}, {made.id: memory}, 21.0)
    assert [(a.kind, a.container, a.reason) for a in agenda.actions] == [
        (K.RESTART, "app", "unhealthy: HTTP 500; restart always")
    ]


def test_a_pod_without_network_restarts_its_containers_together() -> None:
    """When the pod's network is gone all its containers are restarted at once, in order."""
    spec = job(container("app", after=("db",)), container("db"))
    made = pod(spec)
    seen = observed(made, app=RUNNING, db=RUNNING)
    memory = memories.take_in(NOTHING, made, seen, now=0.0, wall=0.0)
    memory = memories.take_in(memory, made, seen, now=5.0, wall=5.0)
    down = replace(seen, infra_running=False, address="")
    memory = memories.take_in(memory, made, down, now=6.0, wall=6.0)
    assert not memories.is_healthy(memory, made)
    assert memories.take_in(memory, made, down, now=6.1, wall=6.1) is memory
    assert steps([wanted(spec)], [down], {made.id: memory}, 6.1) == []
    assert steps([wanted(spec)], [down], {made.id: memory}, 7.0) == ["restart db", "restart app"]


def test_a_slot_that_stops_and_is_to_run_again_stops_first() -> None:
    """The same pod both stopping and waiting is one that stops."""
    both = [wanted(state=WAITING), wanted(state=STOPPING)]
    assert by_pod(both)[pod().id].state is STOPPING


def test_busy_pods_are_left_alone() -> None:
    """Nothing is decided about a pod that is being worked on, nor is its slot run twice."""
    old = observed(pod(version=1), app=RUNNING)
    agenda = reconcile([wanted(version=2)], {old.id: old}, {}, 0.0, busy={old.id})
    assert agenda.actions == ()


# On any way -------------------------------------------------------------------------------------


@dataclass
class Model:
    """A little runtime: pods, and containers that end when told to."""

    pods: dict[PodId, ObservedPod] = field(default_factory=dict)
    memory: dict[PodId, PodMemory] = field(default_factory=dict)
    specs: dict[PodId, Pod] = field(default_factory=dict)
    now: float = 0.0

    def look(self, want: Sequence[Wanted]) -> tuple[tuple[Action, ...], float | None]:
        for entry in want:
            seen = self.pods.get(entry.id)
            memory = self.memory.get(entry.id, NOTHING)
            if entry.pod and seen:
                memory = memories.take_in(memory, entry.pod, seen, now=self.now, wall=self.now)
                for c in entry.pod.containers:  # every probe passes
                    if c.healthcheck and memory.run(c.name).is_running:
                        memory = memories.probed(
                            memory, entry.id, c, passed=True, reason="", now=self.now
                        )
            if entry.state is STOPPING and memory.drain_until is None:
                memory = replace(memory, drain_until=self.now + 0.5)
            self.memory[entry.id] = memory
        agenda = reconcile(want, self.pods, self.memory, self.now)
        return agenda.actions, agenda.look_at

    def do(self, action: Action) -> None:
        match action.kind:
            case K.CREATE:
                assert action.spec
                assert not any(
                    p.instance == action.pod.instance for p in self.pods if p != action.pod
                )
                self.pods[action.pod] = observed(action.spec)
                self.specs[action.pod] = action.spec
                self.memory[action.pod] = NOTHING
            case K.START | K.RESTART:
                seen = self.pods[action.pod]
                self._check_order(seen, action.container)
                running = ObservedContainer(
                    name=action.container, state=RUNNING, started_at=self.now
                )
                self.pods[action.pod] = with_container(seen, running)
                memory = self.memory.get(action.pod, NOTHING)
                self.memory[action.pod] = memories.began(memory, action.container, self.now)
            case K.STOP | K.REMOVE:
                del self.pods[action.pod]
                self.memory.pop(action.pod, None)

    def _check_order(self, seen: ObservedPod, name: str) -> None:
        memory = self.memory.get(seen.id, NOTHING)
        for dependency in self.specs[seen.id].job.container(name).depends_on:
            other = seen.container(dependency.container)
            assert other and other.state is not CREATED, "a dependency was not started before"
            if dependency.condition is Condition.HEALTHY:
                run = memory.run(dependency.container)
                assert run.health.is_healthy or run.is_completed

    def end(self, pick: int, code: int) -> None:
        """Some running container ends."""
        running = [
            (seen, c)
            for _, seen in sorted(self.pods.items())
            for c in seen.containers
            if c.state is RUNNING
        ]
        if running:
            seen, c = running[pick % len(running)]
            ended = replace(c, state=EXITED, exit_code=code, finished_at=self.now)
            self.pods[seen.id] = with_container(seen, ended)


@st.composite
def containers(draw: st.DrawFn) -> tuple[Container, ...]:
    """One to four containers, depending only on those before them, in any order in the file."""
    made: list[Container] = []
    for number in range(draw(st.integers(1, 4))):
        after = draw(st.sets(st.sampled_from([c.name for c in made]))) if made else set()
        made.append(
            container(
                f"c{number}",
                after=tuple(sorted(after)),
                condition=draw(st.sampled_from(Condition)),
                check=draw(st.sampled_from([None, HTTP])),
                restart=draw(st.sampled_from(RestartMode)),
            )
        )
    return tuple(draw(st.permutations(made)))


def wishes() -> st.SearchStrategy[list[Wanted]]:
    def build(spec: tuple[Container, ...], slots: dict[int, tuple[int, SlotState]]) -> list[Wanted]:
        shape = job(*spec)
        return [
            wanted(shape, slot=slot, version=version, state=state)
            for slot, (version, state) in sorted(slots.items())
        ]

    slots = st.dictionaries(
        st.integers(0, 3), st.tuples(st.integers(1, 2), st.sampled_from(SlotState)), max_size=3
    )
    return st.builds(build, containers(), slots)


@settings(max_examples=150, deadline=None)
@given(
    wants=st.lists(wishes(), min_size=1, max_size=4),
    ends=st.lists(st.tuples(st.integers(0, 9), st.sampled_from([0, 1, 137])), max_size=6),
)
def test_it_converges_and_then_rests(
    wants: list[list[Wanted]], ends: list[tuple[int, int]]
) -> None:
    """From anywhere the actions lead to what is wanted, in order; then there is nothing to do."""
    model = Model()
    for want in wants:
        # Identities differ between specifications in reality; here the last wish renames none.
        model.pods = {
            p: seen
            for p, seen in model.pods.items()
            if not any(w.id == p and w.pod != model.specs.get(p) for w in want)
        }
        for pick, code in ends[:2]:
            model.end(pick, code)
        settle(model, want)
    check_settled(model, wants[-1])


def settle(model: Model, want: list[Wanted]) -> None:
    """Look, act, let the time pass that was asked for, until there is nothing more."""
    running = {w.id for w in want if w.state is SlotState.RUNNING}
    for _ in range(300):
        actions, look_at = model.look(want)
        for action in actions:
            assert action.reason
            assert not (action.pod in running and action.kind in (K.STOP, K.REMOVE))
            model.do(action)
        if not actions:
            if look_at is None:
                return
            assert look_at > model.now
            model.now = look_at
    raise AssertionError("it does not come to rest")


def check_settled(model: Model, want: list[Wanted]) -> None:
    assert set(model.pods) == {w.id for w in want if w.state is SlotState.RUNNING}
    for seen in model.pods.values():
        memory = model.memory[seen.id]
        spec = model.specs[seen.id]
        failed = {c.name for c in spec.containers if memory.run(c.name).is_failed}
        stuck = set(failed)
        for c in start_order(spec.containers):
            run, state = memory.run(c.name), seen.container(c.name)
            # What it is to wait for has failed for good; so it waits, before a restart as well.
            others = {d.container for d in c.depends_on if d.condition is Condition.HEALTHY}
            blocked = failed and (not run.has_run or others & stuck)
            if blocked:
                stuck.add(c.name)
            assert state and (
                state.state is RUNNING or run.is_completed or run.is_failed or blocked
            )


@given(spec=containers())
def test_start_order_respects_dependencies(spec: tuple[Container, ...]) -> None:
    """Each container comes after all that it depends on, and none is lost."""
    order = [c.name for c in start_order(spec)]
    assert sorted(order) == sorted(c.name for c in spec)
    for c in spec:
        for dependency in c.depends_on:
            assert order.index(dependency.container) < order.index(c.name)
