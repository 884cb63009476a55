"""Rules on a node's labels: which nodes match, why another does not, rules that no node can match.

Labels are texts. ``==``, ``!=`` and ``in`` compare texts; ``<`` and ``>`` compare numbers, and a
label that is no number matches neither. ``!=`` also holds where the label is missing: "not on
infra nodes" means every node that is not one.
"""

import re
from collections.abc import Iterable, Mapping

from ozymandias.model.job import LabelRule, LabelTest, PlacementRules

_NUMBER = re.compile(r"[-+]?[0-9]{1,15}(\.[0-9]{1,9})?")


def matches(rule: LabelRule, labels: Mapping[str, str]) -> bool:
    value = labels.get(rule.label)
    match rule.test:
        case LabelTest.EXISTS:
            return value is not None
        case LabelTest.EQUAL | LabelTest.IN:
            return value in rule.values
        case LabelTest.UNEQUAL:
            return value not in rule.values
    number, limit = number_of(value), number_of(rule.values[0] if rule.values else None)
    if number is None or limit is None:
        return False
    return number < limit if rule.test is LabelTest.LESS else number > limit


def number_of(text: str | None) -> float | None:
    return float(text) if text is not None and _NUMBER.fullmatch(text) else None


def unmet(rules: Iterable[LabelRule], labels: Mapping[str, str]) -> LabelRule | None:
    """The first rule that these labels do not satisfy."""
    return next((rule for rule in rules if not matches(rule, labels)), None)


def preference(rules: PlacementRules, labels: Mapping[str, str]) -> int:
    """What a node is worth by the job's preferences; 0 when it has none of them."""
    return sum(rule.weight or 1 for rule in rules.prefer if matches(rule, labels))


def spelled(rule: LabelRule) -> str:
    """As a job file has it: ``role == infra``, ``zone in [a, b]``, ``gpu exists``."""
    match rule.test:
        case LabelTest.EXISTS:
            return f"{rule.label} exists"
        case LabelTest.IN:
            return f"{rule.label} in [{', '.join(rule.values)}]"
    return f"{rule.label} {rule.test} {', '.join(rule.values)}"


def contradiction(rules: Iterable[LabelRule]) -> str:
    """Two requirements that no label can satisfy at once, in words; "" if there are none."""
    seen: list[LabelRule] = []
    for rule in rules:
        for other in seen:
            if other.label == rule.label and _exclude(other, rule):
                return f"{spelled(other)} and {spelled(rule)} can't both hold"
        seen.append(rule)
    return ""


def _exclude(one: LabelRule, other: LabelRule) -> bool:
    """Whether no value of the label satisfies both."""
    for first, second in ((one, other), (other, one)):
        if first.test in (LabelTest.EQUAL, LabelTest.IN):
            return not any(matches(second, {first.label: value}) for value in first.values)
    tests = {one.test: one, other.test: other}
    if tests.keys() == {LabelTest.LESS, LabelTest.MORE}:
        below = number_of(tests[LabelTest.LESS].values[0])
        above = number_of(tests[LabelTest.MORE].values[0])
        return below is None or above is None or below <= above
    return False
