"""A few lives of the planners' fuzz target, and that the target itself can fail."""

import random

import pytest

from ozymandias.core.schedule import plan_submit
from ozymandias.jobspec.parse import parse
from ozymandias.model.node import NodeName
from ozymandias.ports import Put
from ozymandias.sim.clock import VirtualLoop
from ozymandias.store import keys
from tests.fuzz.fuzz_plans import Lived, complaint, live, run
from tests.fuzz.paper_cluster import NAMES, Ask, PaperCluster

SEED = 20
STEPS = 400
WEB = parse(b"{name: web, numInstances: 2, containers: {app: {image: demo, memory: 128M}}}")


def test_no_life_violates_anything() -> None:
    """Whatever is asked for, lost and told of, in any order: all that must hold does."""
    lives = run(SEED, STEPS)
    assert not lives[-1].violation, complaint(lives[-1])
    assert sum(life.steps for life in lives) >= STEPS
    assert sum(life.revisions for life in lives) >= STEPS / 2  # most steps change something


@pytest.mark.parametrize("seed", [503, 21430, 21705, 30606, 31218, 33147, 33202])
def test_lives_that_found_a_fault_of_ours_are_well(seed: int) -> None:
    """A placement that did not come out of its record; two of a system job on a node."""
    assert not live(seed).violation


def test_a_life_depends_on_its_seed_alone() -> None:
    """What failed once happens again."""
    assert live(SEED) == live(SEED)
    assert live(SEED).story != live(SEED + 1).story


def test_what_no_planner_wrote_is_found() -> None:
    """An instance that somebody gives to a second node is a violation of that very revision."""

    async def violations() -> list[str]:
        cluster = PaperCluster(random.Random(1), nodes=2, schedulers=2, memory_bytes=2**30)
        first, second = cluster.hosts
        for name in cluster.hosts:
            cluster.join(name)
        submit = Ask("submit", lambda s: plan_submit(s, WEB, uid="u1", names=NAMES))
        assert cluster.commit(first, [submit])
        assert not cluster.violations
        given = cluster.etcd.get(keys.assignment(NodeName(first), WEB.key))
        assert given is not None
        cluster.etcd.txn((), [Put(keys.assignment(second, WEB.key), given.value)])
        return cluster.violations

    assert any(" S2 " in violation for violation in VirtualLoop(1).run(violations()))


def test_a_failure_says_how_to_see_it_again() -> None:
    """The seed of the bad life, what was violated, and the command that lives it again."""
    text = complaint(Lived(seed=7, steps=3, revisions=9, violation="S1 too much", story=()))
    assert "seed 7: S1 too much" in text
    assert "python -m tests.fuzz.fuzz_plans --count 1 --seed 7" in text
