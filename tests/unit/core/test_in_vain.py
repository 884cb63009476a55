"""What is preferred in vain is told: preferences block nothing, so nobody would notice."""

import pytest
import yaml

from ozymandias.core.explain import plan_document
from ozymandias.core.in_vain import GUESSES_MAX, KNOWN_MAX, in_vain
from ozymandias.core.schedule import plan_stop
from ozymandias.jobspec.parse import parse
from ozymandias.model.job import Job, Namespace, Neighbour, PlacementRules
from ozymandias.model.plan import Plan
from ozymandias.model.record import replace
from ozymandias.model.settings import NodePool, Settings
from tests.unit.core.builders import (
    after,
    cluster,
    job,
    key,
    lost,
    node,
    refused,
    settled,
    submit,
    submitted,
)
from tests.unit.core.test_labels import rule

SOME = {"role": "infra", "zone": "a"}
MORE = {"role": "apps", "zone": "b", "disk": "ssd", "cores": "8"}
PROD = Namespace("prod")
FILE = b"name: web\ncontainers: {app: {image: nginx, memory: 64M}}\n"
NODES = cluster(node("n1", labels=SOME), node("n2", labels=MORE), node("n3", labels=MORE))


def preferring(*texts: str, require: tuple[str, ...] = (), spread: str = "") -> Job:
    asked = PlacementRules(
        prefer=tuple(replace(rule(text), weight=1) for text in texts),
        require=tuple(map(rule, require)),
        spread=spread,
    )
    return job(placement=asked)


@pytest.mark.parametrize(
    ("text", "note"),
    [
        ("dsik == ssd", "no node has a label dsik, so to prefer dsik == ssd changes nothing; disk"),
        ("dsik != ssd", "no node has a label dsik, so to prefer dsik != ssd changes nothing; disk"),
        (
            "Role == apps",
            "no node has a label Role, so to prefer Role == apps changes nothing; role",
        ),
        ("gpu exists", "no node has a label gpu, so to prefer gpu exists changes nothing"),
        ("disk == sdd", "no node has disk == sdd, so to prefer it changes nothing; disk == ssd"),
        (
            "role in [app, infar]",
            "no node has role in [app, infar], so to prefer it changes nothing;"
            " role == apps, role == infra",
        ),
        ("cores > 8", "no node has cores > 8, so to prefer it changes nothing"),
        ("zone == nowhere", "no node has zone == nowhere, so to prefer it changes nothing"),
    ],
)
def test_what_no_node_has_is_told(text: str, note: str) -> None:
    """With what was probably meant, whatever the operator; and the job is placed all the same."""
    told = note.replace("; ", "; there is: ")
    assert in_vain(NODES, preferring(text)) == (told,)
    document = plan_document(submit(NODES, preferring(text)), notes=(told,))
    assert document["fits"] and document["notes"] == [told]


def test_a_label_to_spread_over_that_no_node_has_is_told() -> None:
    """Once, though it is preferred as well."""
    told = "no node has a label zoen, so spread has nothing to spread over; there is: zone"
    assert in_vain(NODES, preferring(spread="zoen")) == (told,)
    assert in_vain(NODES, preferring("disk == ssd", spread="zone")) == ()
    other = "no node has a label rack, so spread has nothing to spread over"
    assert in_vain(NODES, preferring(spread="rack")) == (other,)


def test_what_some_node_has_is_not_told() -> None:
    """Also one that is away for now: its labels are known, and it comes back."""
    texts = ("disk == ssd", "role != infra", "cores > 4", "zone in [b, c]")
    wanted = preferring(*texts, spread="zone")
    assert in_vain(NODES, wanted) == in_vain(lost(NODES, "n2", "n3"), wanted) == ()
    assert in_vain(NODES, preferring()) == ()


def test_what_only_nodes_have_that_it_may_not_be_on_is_told() -> None:
    """By its own rules, or because of the pool of its namespace."""
    told = "no node that it may be on has a label disk, so to prefer disk == ssd changes nothing"
    wanted = preferring("disk == ssd", require=("role == infra",))
    assert in_vain(NODES, wanted) == (told,)
    pool = NodePool(namespace="default", require=(rule("role == infra"),))
    pooled = replace(NODES, settings=Settings(pools=(pool,)))
    assert in_vain(pooled, preferring("disk == ssd")) == (told,)
    assert in_vain(pooled, preferring("role == infra")) == ()
    # That no node at all may have it is a problem of its own, and no plan.
    assert in_vain(NODES, preferring("disk == sdd", require=("role == none",))) == ()


def test_a_neighbour_that_is_not_there_is_told() -> None:
    """Preferred or to be apart from, with the jobs that may have been meant; it is no problem."""
    there = submitted(NODES, job("cache"), job("db"), replace(job("logs"), namespace=PROD))

    def told(**placement: object) -> tuple[str, ...]:
        wanted = parse(FILE + yaml.safe_dump({"placement": placement}).encode())
        assert isinstance(submit(there, wanted), Plan)
        return in_vain(there, wanted)

    begun = "there is no job cahce, so to be {} cahce changes nothing until it comes"
    one, meant = {"job": "cahce", "weight": 5}, "; there is: cache"
    assert told(near=[one]) == (begun.format("near") + meant,)
    assert told(apart=[one]) == told(apart="cahce") == (begun.format("apart from") + meant,)
    (elsewhere,) = told(apart="logs")
    assert elsewhere.startswith("there is no job logs,")
    assert elsewhere.endswith("; there is: prod/logs")
    for name in ("xyz", "prod/lxx"):  # of one namespace is no likeness
        (nothing_alike,) = told(apart=name)
        assert nothing_alike.endswith("until it comes")
    assert told(near="cache") == told(apart=["db", "prod/logs"]) == ()
    assert told(near=[{**one, "job": "cache"}]) == ()


def test_a_neighbour_that_goes_is_told_and_one_that_has_to_be_near_is_a_problem() -> None:
    """Who is being stopped is as good as gone; to have to be near nobody is refused, as before."""
    there = settled(submitted(NODES, job("cache")))
    going = after(there, plan_stop(there, key("cache")))
    wanted = replace(job(), placement=PlacementRules(apart=(Neighbour(job=key("cache")),)))
    assert in_vain(there, wanted) == () and len(in_vain(going, wanted)) == 1
    nobody = PlacementRules(near=(Neighbour(job=key("nobody")),))
    required = replace(job(), placement=nobody)
    assert in_vain(there, required) == ()
    assert refused(submit(there, required)).hint.startswith("Submit nobody first,")
    near = replace(job(), placement=PlacementRules(near=(Neighbour(job=key("cahce")),)))
    hint = refused(submit(there, near)).hint
    assert hint.startswith("Did you mean cache? Else submit cahce first,")


def test_guessing_is_bounded() -> None:
    """All is told; what was meant is looked for among so many, and for the first so many only."""
    many = [f"disk == ssd{n:02}" for n in range(GUESSES_MAX + 5)]
    notes = in_vain(NODES, preferring(*many))
    assert len(notes) == len(many)
    assert sum("there is: disk == ssd" in note for note in notes) == GUESSES_MAX
    hosts = [node(f"n{n:04}", labels={"host": f"host-{n:04}"}) for n in range(10 * KNOWN_MAX)]
    (note,) = in_vain(cluster(*hosts), preferring("host == hots-0001"))
    assert "there is: host == host-0001" in note
