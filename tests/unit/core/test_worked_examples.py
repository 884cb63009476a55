"""The worked examples of `docs/scheduling.md`, decided again: what the page shows is what comes.

The job files are those of the page, read from it; the nodes are those that it says the examples
have. What other jobs an example supposes, and where they are, is said here.
"""

import pytest

from ozymandias.cli.complain import problem_text
from ozymandias.core.explain import why
from ozymandias.core.in_vain import in_vain
from ozymandias.core.nodes import plan_cordon
from ozymandias.jobspec.parse import parse
from ozymandias.model.job import Job, JobKey, LabelRule, PlacementRules
from ozymandias.model.node import Node, NodeName
from ozymandias.model.plan import Plan
from ozymandias.model.record import replace
from ozymandias.model.settings import NodePool, Settings
from ozymandias.model.snapshot import Snapshot
from ozymandias.problems import Problem
from tests.docs.pages import DOCS, blocks
from tests.unit.core.builders import (
    after,
    cluster,
    job,
    key,
    node,
    planned,
    refused,
    settled,
    submit,
    submitted,
)

PAGE = DOCS / "scheduling.md"
TEXTS = [block.text for block in blocks(PAGE) if block.language == "text"]
FILES = [block.text for block in blocks(PAGE) if block.language == "yaml"]
APPS, SSD = LabelRule(label="role", values=("apps",)), LabelRule(label="disk", values=("ssd",))


def file(*words: str) -> Job:
    """The one job file of the page that has all of these words."""
    (found,) = [text for text in FILES if all(word in text for word in words)]
    return parse(found.encode())


def three() -> Snapshot:
    """The nodes that the examples of the page have."""
    made = {"n1": {"role": "infra", "zone": "a"}, "n3": {"role": "apps", "zone": "b"}}
    made["n2"] = {"role": "apps", "zone": "a", "disk": "ssd"}
    return cluster(*(node(name, "4G", "20G", labels=made[name]) for name in sorted(made)))


def holding(snapshot: Snapshot, name: str, home: str) -> Snapshot:
    """With an instance of this job, of 512M, on that node."""
    role = PlacementRules(require=(LabelRule(label="home", values=(home,)),))
    there = snapshot.nodes[NodeName(home)]
    marked = replace(there, ledger=replace(there.ledger, labels={"home": home}))
    placed = submitted(
        replace(snapshot, nodes={**snapshot.nodes, there.name: marked}),
        job(name, 1, "512M", placement=role),
    )
    ledger = replace(placed.nodes[there.name].ledger, labels=there.ledger.labels)
    back = replace(placed.nodes[there.name], ledger=ledger)
    return settled(replace(placed, nodes={**placed.nodes, there.name: back}))


def pooled(rule: LabelRule, *, is_hard: bool) -> Snapshot:
    pool = NodePool(namespace="dev", require=(rule,), is_hard=is_hard)
    return replace(three(), settings=Settings(pools=(pool,)))


def in_dev(instances: int, memory: str) -> Job:
    return replace(job("web", instances, memory), namespace=key("web", "dev").namespace)


def lines(plan: Plan) -> str:
    """As `ozy plan` prints it."""
    signs = {True: "+", False: "-"}
    return "".join(
        f"  {signs[e.before is None]} {e.instance} on {e.node}: {e.reason}\n"
        for e in sorted(plan.edits, key=lambda e: e.before is not None)
    )


def cordoned(snapshot: Snapshot, *names: str) -> Snapshot:
    for name in names:
        snapshot = after(snapshot, plan_cordon(snapshot, NodeName(name)))
    return snapshot


SHOP = file("name: shop", "prefer")
CALC = job("calc", 3, "256M", cpu=1.5)
FEW = replace(SHOP, placement=replace(SHOP.placement, max_per_node=2))


@pytest.mark.parametrize(
    ("snapshot", "wanted"),
    [
        pytest.param(three(), SHOP, id="labels"),
        pytest.param(three(), FEW, id="max_per_node"),
        pytest.param(three(), file("apart: prometheus"), id="apart"),
        pytest.param(holding(three(), "cache", "n2"), file("near: cache"), id="near"),
        pytest.param(three(), file("spread: zone"), id="spread"),
        pytest.param(pooled(APPS, is_hard=True), in_dev(2, "512M"), id="a pool"),
        pytest.param(pooled(SSD, is_hard=False), in_dev(3, "1536M"), id="a preferred pool"),
        pytest.param(three(), file("burst:"), id="burst"),
    ],
)
def test_where_the_instances_of_an_example_go(snapshot: Snapshot, wanted: Job) -> None:
    """Node by node, in the order and with the reasons of the page."""
    assert lines(planned(submit(snapshot, wanted))) in TEXTS


@pytest.mark.parametrize(
    ("snapshot", "wanted"),
    [
        pytest.param(three(), replace(FEW, instances=5), id="max_per_node"),
        pytest.param(
            cordoned(holding(three(), "prometheus", "n1"), "n2", "n3"),
            file("apart: prometheus"),
            id="apart",
        ),
        pytest.param(three(), file("host: 8080"), id="ports"),
        pytest.param(
            cluster(*(node(name, "4G", "20G", cpu=2000) for name in ("n1", "n2"))), CALC, id="cpu"
        ),
    ],
)
def test_how_an_example_is_refused(snapshot: Snapshot, wanted: Job) -> None:
    """With the numbers of every node and the changes that would help."""
    problem: Problem = refused(submit(snapshot, wanted))
    assert f"{problem_text(problem)}\n" in TEXTS


def test_what_is_preferred_in_vain_in_the_example() -> None:
    """A note for each slip of the pen, as `ozy plan` prints it."""
    asked = PlacementRules(spread="zoen", prefer=(replace(SSD, values=("sdd",), weight=1),))
    notes = in_vain(three(), replace(SHOP, placement=asked))
    assert "".join(f"  note: {note}\n" for note in notes) in TEXTS


def test_who_is_displaced_in_the_example_and_what_would_help() -> None:
    """The plan, and then why one of the others waits."""
    low = job("batch", 2, "600M", priority=100)
    made: list[Node] = [node(name, "1G", "1G") for name in ("n1", "n2")]
    full = settled(submitted(cluster(*made), low))
    plan = planned(submit(full, file("name: shop", "priority: platform-infrastructure")))
    (shown,) = [text for text in TEXTS if "displaced by shop" in text]
    assert lines(plan) in shown
    snapshot = settled(after(full, plan))
    assert "\n".join(["$ ozy why batch", *why(snapshot, JobKey(*key("batch")))]) in shown
