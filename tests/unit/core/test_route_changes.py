"""The table that is kept up to date is the table made anew, whatever happened in between."""

import random

import pytest

from ozymandias.core.route_changes import RouteChanges
from ozymandias.core.routes import Names, route_table
from ozymandias.model.instance import (
    Assignment,
    Group,
    InstanceState,
    InstanceStatus,
    JobStatus,
    Slots,
    SlotState,
)
from ozymandias.model.job import (
    IngressRule,
    Job,
    JobHead,
    JobKey,
    JobName,
    JobRecord,
    JobVersion,
    Namespace,
    Port,
)
from ozymandias.model.node import Demand, NodeName
from ozymandias.model.record import replace
from ozymandias.model.snapshot import Snapshot
from tests.unit.core.node_side import container

NAMES = Names()
KEYS = [JobKey(Namespace("default"), JobName(name)) for name in ("a", "b", "c", "d")]
NODES = [NodeName("n1"), NodeName("n2")]


def record(key: JobKey, dice: random.Random) -> JobRecord:
    rules = [
        None,
        (),
        (IngressRule(host="shared.example", path=dice.choice(("/", "/x", "/y")), port=80),),
        (IngressRule(host="", path="/api", port=81),),
    ]
    job = Job(
        name=key.name,
        containers=(container(ports=(Port(pod=80, container=80),)),),
        ingress=dice.choice(rules),
    )
    version = dice.randint(1, 2)
    versions = {n: JobVersion(uid="u", version=n, job=job) for n in (1, 2)}
    head = JobHead(uid="u", version=version, wanted=1, deleting=dice.random() < 0.1)
    return JobRecord(key=key, head=head, head_revision=1, versions=versions)


def step(before: Snapshot, dice: random.Random) -> Snapshot:
    """One change, as the mirror makes them: parts that change are new objects, others are not."""
    key, node = dice.choice(KEYS), dice.choice(NODES)
    kind = dice.choice(("jobs", "assignments", "statuses", "claims"))
    part = dict(getattr(before, kind))
    place = {"jobs": key, "claims": dice.choice(("shared.example/", "a.localhost/"))}.get(
        kind, (node, key)
    )
    if dice.random() < 0.3:
        part.pop(place, None)
    elif kind == "jobs":
        part[place] = record(key, dice)
    elif kind == "claims":
        part[place] = key
    elif kind == "assignments":
        group = Group(
            uid="u",
            version=dice.randint(1, 2),
            state=dice.choice((SlotState.RUNNING, SlotState.STOPPING)),
            slots=Slots.of(range(dice.randint(1, 3))),
            demand=Demand(memory_bytes=1, disk_bytes=0),
        )
        part[place] = Assignment(node=node, job=key, groups=(group,))
    else:
        status = InstanceStatus(
            slot=0,
            uid="u",
            version=dice.randint(1, 2),
            state=InstanceState.HEALTHY,
            healthy=dice.random() < 0.8,
            address="10.0.0.1",
        )
        part[place] = JobStatus(node=node, job=key, instances={0: status})
    return replace(before, revision=before.revision + 1, **{kind: part})


@pytest.mark.parametrize("seed", range(10))
def test_same_as_made_anew(seed: int) -> None:
    """After every change, also after several at once, both ways give equal tables."""
    dice = random.Random(seed)
    changes = RouteChanges(NAMES)
    snapshot = Snapshot()
    routes = 0
    for _ in range(400):
        for _ in range(dice.choice((1, 1, 1, 5))):
            snapshot = step(snapshot, dice)
        table = changes.table(snapshot)
        assert table == route_table(snapshot, NAMES)
        routes += len(table.hosts)
    assert routes > 400


def test_what_did_not_change_is_the_same() -> None:
    """Routes of other jobs are the very objects of the table before."""
    dice = random.Random(1)
    snapshot = Snapshot()
    for _ in range(200):
        snapshot = step(snapshot, dice)
    changes = RouteChanges(NAMES)
    before = changes.table(snapshot)
    assert changes.table(replace(snapshot, revision=9999)) is before
    key = next(iter(snapshot.jobs))
    after = changes.table(replace(snapshot, jobs={**snapshot.jobs, key: record(key, dice)}))
    for host, routes in after.hosts.items():
        if not any(route.job == key for route in (*routes, *before.hosts.get(host, ()))):
            assert routes is before.hosts[host]
