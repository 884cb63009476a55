"""Suggestions followed by hand, as a person would who reads them: nothing of `core/` is asked."""

from ozymandias.model.job import Container, Job, Neighbour, PlacementRules
from ozymandias.model.node import NodeName
from ozymandias.model.record import replace
from ozymandias.model.snapshot import Snapshot
from ozymandias.model.units import parse_size
from tests.unit.core.builders import node, returned

Change = dict[str, object]


def followed_by_operator(snapshot: Snapshot, change: Change) -> Snapshot | None:
    """The cluster after what an operator is told to do; None if it is the job that is to change."""
    (what, value), *_ = change.items()
    if what == "nodes":
        return with_new_nodes(snapshot, change)
    if what == "start":
        assert isinstance(value, list)
        return returned(snapshot, *value)
    if what not in ("uncordon", "undrain", "label"):
        return None
    where = NodeName(str(value["node"] if isinstance(value, dict) else value))
    there = snapshot.nodes[where]
    ledger = there.ledger
    if what == "uncordon":
        ledger = replace(ledger, is_cordoned=False)
    elif what == "undrain":
        ledger = replace(ledger, drain=None)
    else:
        assert isinstance(value, dict)
        ledger = replace(ledger, set_labels={**ledger.set_labels, **value["labels"]})
    return replace(snapshot, nodes={**snapshot.nodes, where: replace(there, ledger=ledger)})


def with_new_nodes(snapshot: Snapshot, change: Change) -> Snapshot:
    """So many more nodes, of that size and with those labels."""
    labels = change.get("labels", {})
    assert isinstance(labels, dict)
    more = [
        node(
            f"more{number}",
            str(change["memory_bytes"]),
            str(change["disk_bytes"]),
            labels=dict(labels),
            cpu=int(str(change.get("cpu_millis", 0))),
        )
        for number in range(int(str(change["nodes"])))
    ]
    return replace(snapshot, nodes={**snapshot.nodes, **{n.name: n for n in more}})


def changed_job(job: Job, change: Change) -> Job:
    """The job file with the lines changed that a suggestion names."""
    for name, value in change.items():
        if name == "numInstances":
            job = replace(job, instances=value)
        elif name.startswith("autoscale."):
            job = changed_pool(job, name.removeprefix("autoscale."), value)
        elif name.startswith("placement."):
            rules = changed_rules(job.placement, name.removeprefix("placement."), value)
            job = replace(job, placement=rules)
        else:
            container = changed_container(job.containers[0], name, value)
            job = replace(job, containers=(container, *job.containers[1:]))
    return job


def changed_pool(job: Job, name: str, value: object) -> Job:
    """A file without numInstances: the pool begins with its least."""
    assert job.autoscale
    rules = replace(job.autoscale, **{name: value})
    return replace(job, autoscale=rules, instances=rules.min)


def changed_rules(asked: PlacementRules, name: str, value: object) -> PlacementRules:
    if name == "burst":
        assert value is None
        return replace(asked, burst=None)
    if name == "max_per_node":
        assert isinstance(value, int)
        return replace(asked, max_per_node=value)
    assert isinstance(value, dict) and name in ("near", "apart")

    def weighed(one: Neighbour) -> Neighbour:
        return replace(one, weight=value["weight"]) if str(one.job) == value["job"] else one

    return replace(asked, **{name: tuple(map(weighed, getattr(asked, name)))})


def changed_container(container: Container, name: str, value: object) -> Container:
    if name == "ports":
        return replace(container, ports=())
    if name.endswith(".cpu"):
        assert isinstance(value, float)
        return replace(container, cpu=value)
    size = parse_size(str(value))
    if name.endswith(".memory"):
        return replace(container, memory_bytes=size)
    assert name.endswith(".space")
    return replace(container, volumes=(replace(container.volumes[0], space_bytes=size),))
