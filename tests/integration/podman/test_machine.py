"""The simulated runtime against podman: random operations to both, and every answer compared.

Hypothesis draws the operations. `make test` draws the same few lives each time, in under a minute;
OZY_MACHINE_LIVES=50 draws others. What differed once is kept as a story.
"""

import asyncio
import os
import socket as sockets
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule, run_state_machine_as_test

from tests.integration.podman.conftest import BUSYBOX, Site
from tests.integration.podman.twins import (
    ABSENT,
    CONTAINERS,
    LAYOUTS,
    SLOTS,
    Operation,
    Twins,
    told,
)

LIVES = int(os.environ.get("OZY_MACHINE_LIVES", "0"))
LIVES_IN_TESTS = 4
STEPS = 20

slots = st.sampled_from(SLOTS)
layouts = st.sampled_from(tuple(LAYOUTS))
containers = st.sampled_from(CONTAINERS)


class Machine(RuleBasedStateMachine):
    site: Site
    port: int

    def __init__(self) -> None:
        super().__init__()
        self.runner = asyncio.Runner()
        self.twins = self.runner.run(self._make())

    async def _make(self) -> Twins:
        return Twins(self.site, self.port)

    def do(self, *operation: str) -> None:
        self.runner.run(self.twins.do(*operation))

    @initialize(first=layouts, second=layouts)
    def begin(self, first: str, second: str) -> None:
        self.create_and_start("0", first)
        self.create_and_start("1", second)

    @rule(slot=slots, layout=layouts)
    def create(self, slot: str, layout: str) -> None:
        self.do("create", slot, layout)

    @rule(slot=slots, layout=layouts)
    def create_and_start(self, slot: str, layout: str) -> None:
        """Most of what happens to a pod happens to one that runs."""
        self.do("create", slot, layout)
        for name, _, _ in reversed(LAYOUTS[layout]):
            self.do("start", slot, name)

    @rule(slot=slots, container=containers)
    def start(self, slot: str, container: str) -> None:
        self.do("start", slot, container)

    @rule(slot=slots, container=containers)
    def stop_container(self, slot: str, container: str) -> None:
        self.do("stop container", slot, container)

    @rule(slot=slots)
    def stop(self, slot: str) -> None:
        self.do("stop", slot)

    @rule(slot=slots)
    def remove(self, slot: str) -> None:
        self.do("remove", slot)

    @rule(slot=slots)
    def replace(self, slot: str) -> None:
        """The next version finds what the former one kept."""
        self.do("remove", slot)
        self.do("new version", slot)

    @rule(slot=slots, container=containers)
    def tell_to_end(self, slot: str, container: str) -> None:
        self.do("tell to end", slot, container)

    @rule(slot=slots)
    def kill_network(self, slot: str) -> None:
        self.do("kill network", slot)

    @rule(slot=slots, container=containers, how=st.sampled_from(("exec", "probe")))
    def ask_inside(self, slot: str, container: str, how: str) -> None:
        self.do("exec", slot, container, "word") if how == "exec" else self.do(
            "probe", slot, container
        )

    @rule(slot=slots, container=containers, tail=st.sampled_from(("", "1", "2")))
    def logs(self, slot: str, container: str, tail: str) -> None:
        self.do("logs", slot, container, tail)

    @rule(image=st.sampled_from((BUSYBOX, ABSENT)))
    def image(self, image: str) -> None:
        self.do("image", image, "never")

    @rule()
    def new_daemon(self) -> None:
        self.do("new daemon")

    def teardown(self) -> None:
        try:
            self.runner.run(self.twins.aclose())
        finally:
            self.runner.close()


@pytest.fixture(scope="module")
def host_port() -> int:
    with sockets.socket() as probe:
        probe.bind(("0.0.0.0", 0))
        return int(probe.getsockname()[1])


@pytest.fixture
async def networked(site: Site) -> Site:
    network = site.pod_network()
    await network.ensure()
    await network.aclose()
    return site


@pytest.mark.timeout(120 + 60 * LIVES)
def test_the_simulated_runtime_answers_as_podman_does(networked: Site, host_port: int) -> None:
    """Whatever is asked, in whatever order, both give the same answers and list the same."""
    placed: dict[str, Any] = {"site": networked, "port": host_port}
    run_state_machine_as_test(
        type("Placed", (Machine,), placed),
        settings=settings(
            max_examples=LIVES or LIVES_IN_TESTS,
            stateful_step_count=STEPS,
            deadline=None,
            database=None,
            derandomize=not LIVES,
            phases=(Phase.generate,),  # shrinking takes many lives, and podman is slow
            suppress_health_check=tuple(HealthCheck),
        ),
    )


STORIES: dict[str, tuple[Operation, ...]] = {
    "containers are listed by name": (("create", "0", "two"),),
    "exec, and a probe by exec, which needs no address": (
        ("create", "0", "one"),
        ("start", "0", "app"),
        ("exec", "0", "app", "word"),
        ("kill network", "0"),
        ("probe", "0", "app"),
    ),
    "a new network kills who ignores the signal": (
        ("create", "0", "chain"),
        ("start", "0", "web"),
        ("start", "0", "app"),
        ("kill network", "0"),
        ("start", "0", "app"),
    ),
    "a start of what is not there brings the network up": (
        ("create", "0", "one"),
        ("stop", "0"),
        ("start", "0", "web"),
    ),
    "a port that was taken while its pod was down": (
        ("create", "0", "port"),
        ("create", "1", "port"),
        ("stop", "0"),
        ("create", "1", "port"),
        ("start", "0", "app"),
        ("remove", "1"),
        ("start", "0", "app"),
    ),
    "volumes have what was written, as long as they live": (
        ("create", "0", "kept"),
        ("start", "0", "app"),
        ("create", "1", "shared"),
        ("start", "1", "app"),
        ("remove", "0"),
        ("new version", "0"),
        ("create", "0", "kept"),
        ("start", "0", "app"),
        ("logs", "0", "app", ""),
        ("create", "0", "shared"),
        ("start", "0", "app"),
        ("logs", "0", "app", "1"),
        ("create", "0", "local"),
        ("start", "0", "app"),
        ("stop", "0"),
        ("start", "0", "app"),
        ("create", "0", "local"),
        ("start", "0", "app"),
        ("logs", "0", "app", ""),
    ),
}


@pytest.mark.parametrize("story", STORIES)
async def test_stories_that_once_differed(networked: Site, host_port: int, story: str) -> None:
    """What the machine found once stays found."""
    await told(networked, host_port, *STORIES[story])
