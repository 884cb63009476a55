"""Rules on labels: what matches, how it is spelled, what can never match."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ozymandias.model.job import LabelRule, LabelTest
from ozymandias.model.labels import contradiction, labels_for, matches, spelled


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
        (
            ("zone in [a, b]", "zone != a", "zone != b"),
            "zone in [a, b], zone != a and zone != b can't all hold",
        ),
        (("zone in [a, b, c]", "zone != a", "zone != b"), ""),
        (
            ("cores > 2", "cores < 4", "cores in [1, 5]"),
            "cores > 2, cores < 4 and cores in [1, 5] can't all hold",
        ),
        (("cores > 2", "cores < 4", "cores in [1, 3]"), ""),
        (("role == a", "role == b", "role == c"), "role == a and role == b can't both hold"),
        (
            ("zone in [a, b]", "zone exists", "zone in [b, c]", "zone in [a, c]"),
            "zone in [a, b], zone in [b, c] and zone in [a, c] can't all hold",
        ),
        (("cores > 2", "cores < 3", "cores != 2.5"), ""),
        (("cores > 2", "cores < 2.000000001"), "cores > 2 and cores < 2.000000001 can't both hold"),
        (("cores < 2", "cores exists", "cores > 5"), "cores < 2 and cores > 5 can't both hold"),
        (("cores < 0", "cores != -1"), ""),
        (("cores > 999999999999999",), ""),
        (("zone == a", "role == b", "zone != a"), "zone == a and zone != a can't both hold"),
        (("role == a", "role == a"), ""),
    ],
)
def test_requirements_that_exclude_each_other_are_named(
    texts: tuple[str, ...], expected: str
) -> None:
    """Whatever label a node had, it could not satisfy them all; none is named without need."""
    assert contradiction(map(rule, texts)) == expected


@pytest.mark.parametrize(
    ("texts", "expected"),
    [
        (("zone in [a, b]", "zone != a"), {"zone": "b"}),
        (("role != infra",), {}),
        (("gpu exists",), {"gpu": "yes"}),
        (("gpu exists", "gpu != yes"), {"gpu": "yes-1"}),
        (("cores > 4",), {"cores": "5"}),
        (("cores > 4.5", "cores != 5"), {"cores": "6"}),
        (("cores < 4",), {"cores": "3"}),
        (("cores > 4", "cores < 5"), {"cores": "4.5"}),
        (("cores > 4", "zone == a", "role != x"), {"cores": "5", "zone": "a"}),
        (("zone == a", "zone == b"), None),
    ],
)
def test_labels_that_satisfy_rules(texts: tuple[str, ...], expected: dict[str, str] | None) -> None:
    """A value for each label that has to be there, and none for one that need not be."""
    assert labels_for(map(rule, texts)) == expected


def test_only_what_a_node_lacks_is_to_be_labelled() -> None:
    """What holds stays as it is; a label that would have to go is nothing to give."""
    rules = [rule("zone in [a, b]"), rule("role != infra")]
    assert labels_for(rules, {"zone": "b"}) == {}
    assert labels_for(rules, {"zone": "c", "role": "apps"}) == {"zone": "a"}
    assert labels_for(rules, {"zone": "b", "role": "infra"}) is None


VALUES = ("a", "b", "1", "2", "2.5", "3", "-1")
NUMBERS = ("-1", "1", "2", "2.5", "3")
rules = st.one_of(
    st.builds(
        lambda test, value: LabelRule(label="x", test=test, values=(value,)),
        st.sampled_from([LabelTest.EQUAL, LabelTest.UNEQUAL]),
        st.sampled_from(VALUES),
    ),
    st.builds(
        lambda test, value: LabelRule(label="x", test=test, values=(value,)),
        st.sampled_from([LabelTest.LESS, LabelTest.MORE]),
        st.sampled_from(NUMBERS),
    ),
    st.builds(
        lambda values: LabelRule(label="x", test=LabelTest.IN, values=tuple(values)),
        st.lists(st.sampled_from(VALUES), min_size=1, max_size=4, unique=True),
    ),
    st.just(LabelRule(label="x", test=LabelTest.EXISTS)),
)


@settings(max_examples=500, deadline=None)
@given(st.lists(rules, min_size=1, max_size=6))
def test_rules_contradict_each_other_exactly_if_no_label_satisfies_them(
    asked: list[LabelRule],
) -> None:
    """What is found does satisfy them, and where nothing is found no value of many would."""
    found, against = labels_for(asked), contradiction(asked)
    if found is not None:
        assert not against and all(matches(one, found) for one in asked)
        return
    assert against
    tried = ({}, *({"x": v} for v in (*VALUES, "c", "0", "1.5", "2.2", "2.7", "9", "-9")))
    assert not any(all(matches(one, labels) for one in asked) for labels in tried)
    named = [one for one in asked if spelled(one) in against]
    assert labels_for(named) is None
