"""The simulator's checks, where one of them was wrong before."""

import asyncio
from collections.abc import Callable
from typing import Any

from ozymandias import problems
from ozymandias.model.instance import Assignment, Group, Slots, SlotState
from ozymandias.model.job import JobHead, JobKey, JobName, Namespace
from ozymandias.model.node import Demand, NodeName
from ozymandias.problems import ProblemError
from ozymandias.sim.rest import differences
from ozymandias.sim.truth import Truth
from ozymandias.sim.users import Call, Users

WEB = JobKey(Namespace("default"), JobName("web"))
N1, N2 = NodeName("n1"), NodeName("n2")
DEMAND = Demand(memory_bytes=1, disk_bytes=0)


def answers(users: Users, call: Call, during: Callable[[], None], *, problem: Any = None) -> None:
    """A call during which something happens, and which is answered with this."""

    async def request() -> dict[str, Any]:
        during()
        if problem:
            raise ProblemError(problem("for a test"))
        return {"changed": True}

    asyncio.run(users.ask(call, request))


def scaled(users: Users) -> None:
    before = JobHead(uid="u", version=1, wanted=4)
    users.head_changed(WEB, before, JobHead(uid="u", version=1, wanted=1), 2)


def nothing() -> None:
    pass


def test_an_answer_tells_which_of_two_like_calls_made_a_change() -> None:
    """A submit without an answer might have scaled to one as well; the scale says it did."""
    violations: list[str] = []
    users = Users(Truth(), lambda text: None, violations.append)
    unknown = Call(kind="submit", key=WEB, wanted=1)
    answers(users, unknown, nothing, problem=problems.OUTCOME_UNKNOWN)
    answers(users, Call(kind="scale", key=WEB, wanted=1), lambda: scaled(users))
    assert violations == []
    assert unknown.applied == 0
    answers(users, Call(kind="scale", key=WEB, wanted=1), nothing)
    assert violations == ["S5 scale web to 1 was acknowledged and never happened"]


def test_a_refusal_tells_that_another_call_made_a_change() -> None:
    """The change is put down to the call without an answer; with none such it is a violation."""
    for others in ([Call(kind="scale", key=WEB, wanted=1)], []):
        violations: list[str] = []
        users = Users(Truth(), lambda text: None, violations.append)
        refused = Call(kind="submit", key=WEB, wanted=1)
        users.calls.append(refused)  # it is the first that a change is put down to
        for other in others:
            answers(users, other, nothing, problem=problems.OUTCOME_UNKNOWN)
        answers(users, refused, lambda: scaled(users), problem=problems.NO_NODES)  # noqa: B023
        assert [other.applied for other in others] == [1] * len(others)
        assert len(violations) == 1 - len(others)


def test_what_waits_for_a_node_that_never_answers_may_wait() -> None:
    """Its predecessor stops where podman hangs for ever; where it works that is not rest."""
    truth = Truth()
    for node, state in ((N1, SlotState.STOPPING), (N2, SlotState.WAITING)):
        group = Group(uid="u", version=1, state=state, slots=Slots.of([0]), demand=DEMAND)
        truth.assignments[node] = {WEB: Assignment(node=node, job=WEB, groups=(group,))}
        truth.presences[node] = None  # type: ignore[assignment]
    assert differences(truth, {}, {N2}) == []
    assert differences(truth, {}, {N1, N2}) == [
        "web-0 is still stopping on n1",
        "web-0 is still waiting on n2",
    ]
