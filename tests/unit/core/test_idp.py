"""The platform of `jobspecs/idp/`: three small nodes that hold it all, and two that hold the best.

Two workers of 4G (infra and apps) and a control node of 4G. Decided by the arbiter alone, as every
peer would: each plan is applied, what stops is gone, what runs is healthy, and it is asked again.
"""

from collections import Counter
from pathlib import Path

import pytest

from ozymandias.core.advice import advice
from ozymandias.core.arbiter import Leisure, propose
from ozymandias.jobspec.parse import parse
from ozymandias.model.instance import SlotState
from ozymandias.model.job import Job, JobKind
from ozymandias.model.node import NodeName
from ozymandias.model.plan import Plan
from ozymandias.model.snapshot import Snapshot

from .builders import after, cluster, key, lost, node, returned, settled, submit

FILES = sorted((Path(__file__).parents[3] / "jobspecs" / "idp").glob("*.yaml"))
MIB = 2**20
ARGO_CD = {name.stem for name in FILES if name.stem.startswith("argocd")}
MOVES_MAX = 7  # of 16 services
STEP_SECONDS = 100.0
STEPS_MAX = 40  # far more than it takes; a cluster that never rests fails here


def jobs() -> list[Job]:
    """As one would submit them: what every node needs first, then by importance."""
    found = [parse(file.read_bytes(), file.name) for file in FILES]
    return sorted(found, key=lambda j: (j.kind is not JobKind.SYSTEM, -j.priority, j.name))


def platform() -> Snapshot:
    roles = {"control": "control", "infra": "infra", "apps": "apps"}
    nodes = [node(name, "4G", labels={"role": role}) for name, role in roles.items()]
    snapshot = cluster(*nodes)
    for job in jobs():
        snapshot = settled(after(snapshot, submit(snapshot, job)))
    return at_rest(snapshot)[0]


def at_rest(snapshot: Snapshot, *dead: str) -> tuple[Snapshot, list[Plan]]:
    """Until the arbiter has nothing more to do; and what it did."""
    plans: list[Plan] = []
    for step in range(STEPS_MAX):
        gone = frozenset(map(NodeName, dead))
        proposal = propose(snapshot, gone, 1e6 + STEP_SECONDS * step, leisure=Leisure())
        if proposal is None:
            return snapshot, plans
        plans.append(proposal.plan)
        snapshot = settled(after(snapshot, proposal.plan))
    raise AssertionError(f"never at rest: {[plan.reason for plan in plans]}")


def places(snapshot: Snapshot) -> dict[str, str]:
    """Job -> node, of the services that run."""
    return {
        a.job.name: a.node
        for a in snapshot.instances()
        if a.state is SlotState.RUNNING and snapshot.jobs[a.job].head.wanted
    }


def waiting(snapshot: Snapshot) -> dict[str, int]:
    """Job -> priority, of the services that run nowhere."""
    running = places(snapshot)
    return {
        job.name: job.priority
        for job in jobs()
        if job.kind is JobKind.SERVICE and job.name not in running
    }


def fullness(snapshot: Snapshot) -> dict[str, float]:
    return {
        name: there.ledger.promised.resources.memory_bytes / there.ledger.allocatable.memory_bytes
        for name, there in snapshot.nodes.items()
    }


def test_the_files_are_the_platform() -> None:
    """Sizes are those that were asked for: 690M of system jobs, 4992M on workers."""
    sizes = {j.name: sum(c.memory_bytes for c in j.containers) // MIB for j in jobs()}
    system = sum(sizes[j.name] for j in jobs() if j.kind is JobKind.SYSTEM)
    assert system == 690
    assert {n: sizes[n] for n in ("prometheus", "loki", "grafana", "alertmanager", "pyrra")} == {
        "prometheus": 1024,
        "loki": 384,
        "grafana": 384,
        "alertmanager": 128,
        "pyrra": 128,
    }
    assert sorted(sizes[name] for name in ARGO_CD) == [128, 256, 256, 512]
    on_workers = sum(sizes.values()) - system - 512
    assert on_workers == 4992


def test_normally_all_runs_and_prometheus_and_loki_are_apart() -> None:
    """Each worker is somewhat above the target, because both together are; none is crowded."""
    snapshot = platform()
    there = places(snapshot)
    assert waiting(snapshot) == {}
    assert {there["prometheus"], there["loki"]} == {"infra", "apps"}
    assert {there[name] for name in ("vault", "cert-manager", "external-secrets")} == {"control"}
    # 2 x 690M and 4992M are 78 % of two workers of 4G: 70 % on each is not to be had.
    full = fullness(snapshot)
    assert full["infra"] + full["apps"] == pytest.approx(2 * 0.778, abs=0.001)
    assert all(0.70 < full[name] < 0.82 for name in ("infra", "apps")), full


@pytest.mark.parametrize("name", ["infra", "apps"])
def test_a_worker_is_lost(name: str) -> None:
    """Argo CD and the observers run, and what waits is less important than all that runs."""
    normal = platform()
    snapshot, plans = at_rest(lost(normal, name), name)
    there, left = places(snapshot), waiting(snapshot)
    assert there.keys() >= ARGO_CD
    assert there.keys() & {"prometheus", "loki"}
    priorities = {job.name: job.priority for job in jobs()}
    movable = [priorities[job] for job, where in there.items() if where != "control"]
    assert left
    assert max(left.values()) < min(movable), (left, there)
    stops = Counter(
        e.job.name for plan in plans for e in plan.edits if e.after is SlotState.STOPPING
    )
    assert all(count == 1 for count in stops.values()), stops  # nobody is displaced twice
    for waits in (one for one in snapshot.jobs if one.name in left):
        assert advice(snapshot, waits)[0].change == {"start": [name]}  # before asking for less


@pytest.mark.parametrize("name", ["infra", "apps"])
def test_the_worker_returns(name: str) -> None:
    """All is as before, and only who had to be elsewhere has moved, once."""
    normal = platform()
    alone, _ = at_rest(lost(normal, name), name)
    snapshot, plans = at_rest(returned(alone, name))
    assert places(snapshot) == places(normal)
    edits = [edit for plan in plans for edit in plan.edits]
    moved = Counter(edit.job.name for edit in edits if edit.after is SlotState.STOPPING)
    assert all(count == 1 for count in moved.values()), moved
    assert len(moved) <= MOVES_MAX, moved


def test_the_control_node_is_lost_and_returns() -> None:
    """What prefers it goes to the workers, and goes home."""
    normal = platform()
    snapshot, _ = at_rest(lost(normal, "control"), "control")
    there = places(snapshot)
    assert waiting(snapshot) == {}
    assert {there[n] for n in ("vault", "cert-manager", "external-secrets")} <= {"infra", "apps"}
    again, plans = at_rest(returned(snapshot, "control"))
    assert places(again) == places(normal)
    moves = [e for plan in plans for e in plan.edits if e.after is SlotState.STOPPING]
    assert len(moves) == 3


def test_keys_are_in_one_namespace() -> None:
    """So that they name each other without it."""
    assert key("loki", "platform") in platform().jobs
