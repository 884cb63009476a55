"""Requirements that exclude each other: a file is told what a submitted job would be, offline."""

import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ozymandias.jobspec.parse import parse
from ozymandias.model.job import LabelRule, PlacementRules
from ozymandias.model.labels import spelled
from ozymandias.problems import Problem, ProblemError
from tests.unit.core.builders import cluster, job, submit
from tests.unit.core.test_labels import rule, rules


def told(required: list[LabelRule]) -> list[str]:
    """What is said of a file that requires these, line by line."""
    lines = "".join(f"    - {spelled(one)}\n" for one in required)
    text = f"name: web\nplacement:\n  require:\n{lines}containers: {{app: {{image: nginx}}}}\n"
    try:
        parse(text.encode())
    except ProblemError as error:
        return [
            f"{found['line']}:{found['column']} {found['pointer']}: {found['detail']}"
            for found in error.problem.fields["errors"]
        ]
    return []


@pytest.mark.parametrize(
    ("texts", "expected"),
    [
        (("role == a", "role == b"), "5:7 placement.require.1: role == a and role == b"),
        (("cores > 8", "gpu exists", "cores < 4"), "6:7 placement.require.2: cores > 8 and cores"),
        (("zone in [a]", "zone != a", "zone exists"), "5:7 placement.require.1: zone in [a] and"),
    ],
)
def test_what_contradicts_itself_is_named_without_a_cluster(
    texts: tuple[str, ...], expected: str
) -> None:
    """With line and column of the last rule that is part of it."""
    (found,) = told(list(map(rule, texts)))
    assert found.startswith(expected) and found.endswith(" can't both hold")


@settings(max_examples=300, deadline=None)
@given(st.lists(rules, min_size=1, max_size=6))
def test_a_file_is_told_what_a_submitted_job_is(required: list[LabelRule]) -> None:
    """What no cluster could ever match, and nothing else, in the same words."""
    asked = job(placement=PlacementRules(require=tuple(required)))
    decision = submit(cluster(n1="4G"), asked)
    detail = decision.detail if isinstance(decision, Problem) else ""
    complaints = [found.partition(": ")[2] for found in told(required)]
    assert complaints == re.findall(r"No node can match web: (.*)\.", detail)
