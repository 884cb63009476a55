"""The table of rights: which change takes which, and what is said of protected jobs."""

import pytest

from ozymandias.api.changes import Asked, Condition, mark
from ozymandias.api.rights import NEEDS, OVERRIDE, PROTECTED, check, may, needed, refusal
from ozymandias.api.table import ROUTES
from ozymandias.core.schedule import plan_stop
from ozymandias.model.job import JobHead, JobRecord, JobVersion
from ozymandias.model.plan import Plan
from ozymandias.problems import FORBIDDEN, ProblemError
from ozymandias.store.tokens import Right
from tests.unit.core.builders import cluster, job, key, refused, submitted

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
