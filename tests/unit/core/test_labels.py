"""Rules on labels: what matches, how it is spelled, what can never match."""

import pytest

from ozymandias.core.labels import contradiction, matches, spelled
from ozymandias.model.job import LabelRule, LabelTest


def rule(text: str) -> LabelRule:
    label, test, *values = text.replace("[", "").replace("]", "").replace(",", "").split()
    return LabelRule(label=label, test=LabelTest(test), values=tuple(values))


@pytest.mark.parametrize(
    ("text", "labels", "expected"),
    [
        ("role == infra", {"role": "infra"}, True),
        ("role == infra", {"role": "web"}, False),
        ("role == infra", {}, False),
        ("role != infra", {"role": "web"}, True),
        ("role != infra", {}, True),
        ("zone in [a, b]", {"zone": "b"}, True),
        ("zone in [a, b]", {"zone": "c"}, False),
        ("gpu exists", {"gpu": "no"}, True),
        ("gpu exists", {}, False),
        ("cores > 4", {"cores": "10"}, True),
        ("cores > 4", {"cores": "4"}, False),
        ("cores < 4.5", {"cores": "4"}, True),
        ("cores > 4", {"cores": "many"}, False),
        ("cores < 4", {}, False),
    ],
)
def test_a_rule_matches_labels(text: str, labels: dict[str, str], expected: bool) -> None:
    """Texts are compared as texts, numbers as numbers; only != holds of what is missing."""
    assert matches(rule(text), labels) is expected
    assert spelled(rule(text)) == text


@pytest.mark.parametrize(
    ("texts", "expected"),
    [
        (("role == a", "role == b"), "role == a and role == b can't both hold"),
        (("role == a", "zone == b"), ""),
        (("role == a", "role != a"), "role == a and role != a can't both hold"),
        (("zone in [a, b]", "zone in [b, c]"), ""),
        (("zone in [a, b]", "zone in [c]"), "zone in [a, b] and zone in [c] can't both hold"),
        (("cores > 4", "cores < 3"), "cores > 4 and cores < 3 can't both hold"),
        (("cores > 4", "cores < 8"), ""),
        (("cores == 2", "cores > 4"), "cores == 2 and cores > 4 can't both hold"),
        (("gpu exists", "gpu != none"), ""),
    ],
)
def test_requirements_that_exclude_each_other_are_named(
    texts: tuple[str, ...], expected: str
) -> None:
    """Whatever label a node had, it could not satisfy both."""
    assert contradiction(map(rule, texts)) == expected
