"""The table of rights: which change takes which, and what is said of protected jobs."""

import pytest

from ozymandias.api.changes import Asked, Condition, mark
from ozymandias.api.rights import (
    NEEDS,
    OF_OPERATORS,
    OVERRIDE,
    PROTECTED,
    advised,
    check,
    may,
    needed,
    refusal,
    told,
)
from ozymandias.api.table import ROUTES
from ozymandias.core.advice import OF_NODES
from ozymandias.core.nodes import plan_cordon
from ozymandias.core.schedule import plan_stop
from ozymandias.model.job import JobHead, JobRecord, JobVersion
from ozymandias.model.node import NodeName
from ozymandias.model.plan import Plan
from ozymandias.problems import FORBIDDEN, ProblemError, Suggestion
from ozymandias.store.tokens import Right
from tests.unit.core.builders import after, cluster, job, key, refused, submit, submitted

CHANGES = {route.change for route in ROUTES if route.change}
DEPLOY = {"job.submit", "job.scale", "job.restart", "job.stop", "instance.exec"}


def test_the_table_has_every_change_and_nothing_else() -> None:
    """A new change has to be given its right; until then it is for administrators."""
    assert set(NEEDS) == CHANGES | {PROTECTED, OVERRIDE}
    assert needed("something.new") is Right.ADMIN


def test_who_deploys_may_change_jobs_and_nothing_else() -> None:
    """And who administers may do everything."""
    assert {what for what in NEEDS if may(Right.DEPLOY, what)} == DEPLOY
    assert all(may(Right.ADMIN, what) for what in (*NEEDS, "something.new"))


def test_what_is_refused_says_who_could() -> None:
    """The right that the token has, and the one that it takes."""
    check(Right.ADMIN, "node.drain")
    check(Right.DEPLOY, "job.scale")
    with pytest.raises(ProblemError) as error:
        check(Right.DEPLOY, "node.drain")
    document = error.value.problem.document()
    assert document["status"] == 403 and document["type"].endswith("#forbidden")
    assert (document["right"], document["needed"]) == ("deploy", "admin")
    assert document["operation"] == "node.drain"


def record(is_protected: bool, *, readable: bool = True) -> JobRecord:
    found = job("db", 1, "1G", is_protected=is_protected)
    version = JobVersion(uid="a", version=1, job=found)
    return JobRecord(
        key=found.key,
        head=JobHead(uid="a", version=1, wanted=1),
        head_revision=1,
        versions={1: version} if readable else {},
    )


@pytest.mark.parametrize(
    ("there", "wanted", "word"),
    [
        (None, None, ""),
        (None, False, ""),
        (None, True, "to be protected"),
        (record(False), None, ""),
        (record(False), False, ""),
        (record(False), True, "to be protected"),
        (record(True), None, "is protected"),
        (record(True), False, "is protected"),
        (record(True), True, "is protected"),
        (record(False, readable=False), None, "might be protected"),
    ],
)
def test_protected_jobs_are_for_administrators(
    there: JobRecord | None, wanted: bool | None, word: str
) -> None:
    """Those that are, those that are to be, and those of which it is not known."""
    new = None if wanted is None else job("db", 1, "1G", is_protected=wanted)
    assert refusal(Right.ADMIN, key("db"), there, new) is None
    found = refusal(Right.DEPLOY, key("db"), there, new)
    assert bool(found) == bool(word)
    assert found is None or word in found.detail


def test_each_decision_asks_again() -> None:
    """A job that becomes protected between two attempts of a stop is not stopped."""
    plain = submitted(cluster(n1="4G"), job("db", 1, "1G"))
    safe = submitted(plain, job("db", 1, "1G", is_protected=True))
    stop = Asked(right=Right.DEPLOY).guard(key("db"), lambda s: plan_stop(s, key("db")))
    assert isinstance(stop(plain), Plan)
    assert refused(stop(safe)).kind is FORBIDDEN
    assert isinstance(stop(plain), Plan)


def test_who_may_not_is_told_so_before_anything_else() -> None:
    """Neither a version nor a key says more of a protected job than that it is."""
    safe = submitted(cluster(n1="4G"), job("db", 1, "1G", is_protected=True))
    asked = Asked(
        right=Right.DEPLOY, condition=Condition.parse('"7"'), idempotency=mark("key", b"body")
    )
    assert (
        refused(asked.guard(key("db"), lambda s: plan_stop(s, key("db")))(safe)).kind is FORBIDDEN
    )


def test_what_speaks_of_nodes_is_for_administrators() -> None:
    """Each of these changes is one of the table, or is made on the hosts."""
    assert set(OF_OPERATORS) == OF_NODES
    assert set(filter(None, OF_OPERATORS.values())) <= set(NEEDS)
    assert not any(may(Right.DEPLOY, what) for what in OF_OPERATORS.values())


@pytest.mark.parametrize(
    ("change", "is_own"),
    [
        ({"numInstances": 2}, True),
        ({"containers.app.memory": "1G"}, True),
        ({"placement.max_per_node": 2}, True),
        ({"uncordon": "n2"}, False),
        ({"undrain": "n2"}, False),
        ({"label": {"node": "n2", "labels": {"a": "b"}}}, False),
        ({"start": ["n2"]}, False),
        ({"nodes": 1, "memory_bytes": 5, "labels": {}}, False),
    ],
)
def test_advice_fits_who_is_advised(change: dict[str, object], is_own: bool) -> None:
    """Who deploys is told what to have done by others; who administers, what to do."""
    given = Suggestion(text="do this", change=change)
    assert advised(Right.ADMIN, given) == given
    assert advised(Right.DEPLOY, given).change == change
    words = "do this" if is_own else "have an administrator do this"
    assert advised(Right.DEPLOY, given).text == words
    assert advised(Right.DEPLOY, advised(Right.DEPLOY, given)).text == words


def test_a_job_that_does_not_fit_comes_with_advice_for_its_reader() -> None:
    """In its list and in its hint; all else is the same."""
    snapshot = cluster(n1="4G", n2="4G")
    snapshot = after(snapshot, plan_cordon(snapshot, NodeName("n2")))
    problem = refused(submit(snapshot, job("web", 6)))
    assert told(Right.ADMIN, problem) == problem
    found = told(Right.DEPLOY, problem)
    texts = [suggestion["text"] for suggestion in found.fields["suggestions"]]
    assert "run 4 instances instead of 6" in texts
    assert "have an administrator uncordon n2" in texts and "uncordon n2" not in texts
    assert found.hint == "; or ".join(texts)
    assert {**found.fields, "suggestions": 0} == {**problem.fields, "suggestions": 0}


def test_other_problems_are_told_as_they_are() -> None:
    """Without suggestions there is nothing to fit."""
    problem = FORBIDDEN("No.", hint="uncordon n2")
    assert told(Right.DEPLOY, problem) is problem
