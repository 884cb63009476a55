"""Rules on labels: what matches, how it is spelled, and which labels would satisfy several.

Labels are texts. ``==``, ``!=`` and ``in`` compare texts; ``<`` and ``>`` compare numbers, and a
label that is no number matches neither. ``!=`` also holds where the label is missing: "not on
infra nodes" means every node that is not one.

Rules that contradict each other are those for which no labels can be found: there is one search for
both, `labels_for` tells what it finds and `contradictions` what it does not. Neither needs a
cluster: a job file is told the same offline as one that is submitted.
"""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from decimal import Decimal

from ozymandias.model.job import LabelRule, LabelTest

BILLION = 10**9  # a number in a label has up to nine decimals

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


def spelled(rule: LabelRule) -> str:
    """As a job file has it: ``role == infra``, ``zone in [a, b]``, ``gpu exists``."""
    match rule.test:
        case LabelTest.EXISTS:
            return f"{rule.label} exists"
        case LabelTest.IN:
            return f"{rule.label} in [{', '.join(rule.values)}]"
    return f"{rule.label} {rule.test} {', '.join(rule.values)}"


# What satisfies several rules ---------------------------------------------------------------------


def contradictions(rules: Iterable[LabelRule]) -> Iterator[tuple[LabelRule, ...]]:
    """Requirements that no label can satisfy at once, label by label.

    All rules on one label are looked at together: three may exclude each other of which any two
    could be met. Named are only those without which the others could be met.
    """
    for found in _by_label(rules).values():
        if _value_for(found) is None:
            needed = found
            for rule in reversed(found):
                fewer = [other for other in needed if other is not rule]
                if fewer and _value_for(fewer) is None:
                    needed = fewer
            yield tuple(needed)


def contradiction(rules: Iterable[LabelRule]) -> str:
    """The first of them in words; "" if there are none."""
    return next(map(contradiction_words, contradictions(rules)), "")


def contradiction_words(rules: Sequence[LabelRule]) -> str:
    *others, last = map(spelled, rules)
    if not others:
        return f"{last} can't hold"
    how = "both" if len(others) == 1 else "all"
    return f"{', '.join(others)} and {last} can't {how} hold"


def labels_for(
    rules: Iterable[LabelRule], present: Mapping[str, str] | None = None
) -> dict[str, str] | None:
    """Labels to give a node that has those ``present``, so that all of the rules hold of it.

    None if there are no such labels: the rules contradict each other, or it would have to lose one.
    """
    found: dict[str, str] = {}
    for label, group in _by_label(rules).items():
        if not _hold(group, present or {}):
            value = _value_for(group)
            if not value:
                return None
            found[label] = value
    return found


def _by_label(rules: Iterable[LabelRule]) -> dict[str, list[LabelRule]]:
    found: dict[str, list[LabelRule]] = {}
    for rule in dict.fromkeys(rules):
        found.setdefault(rule.label, []).append(rule)
    return found


def _value_for(rules: Sequence[LabelRule]) -> str | None:
    """A value of which all of these rules on one label hold.

    Empty if they also hold where the label is missing, None if they hold of no value.
    """
    label = rules[0].label
    if _hold(rules, {}):
        return ""
    return next(
        (text for text in _candidates(rules) if _hold(rules, {label: text})),
        None,
    )


def _hold(rules: Iterable[LabelRule], labels: Mapping[str, str]) -> bool:
    return all(matches(rule, labels) for rule in rules)


def _candidates(rules: Sequence[LabelRule]) -> Iterator[str]:
    """Values one of which satisfies the rules, if any does; the plainest first."""
    named = [r.values for r in rules if r.test in (LabelTest.EQUAL, LabelTest.IN)]
    if named:
        yield from named[0]
        return
    # Each `!=` takes away one text, so one more than there are of them is enough to try.
    tries = 1 + sum(len(r.values) for r in rules if r.test is LabelTest.UNEQUAL)
    if any(r.test in (LabelTest.LESS, LabelTest.MORE) for r in rules):
        yield from _numbers(rules, tries)
    else:
        yield from (f"yes-{number}" if number else "yes" for number in range(tries))


def _numbers(rules: Sequence[LabelRule], tries: int) -> Iterator[str]:
    """Numbers above and below all limits: whole ones, then fractions as fine as labels have."""
    above = [_billionths(r.values) for r in rules if r.test is LabelTest.MORE]
    below = [_billionths(r.values) for r in rules if r.test is LabelTest.LESS]
    if any(limit is None for limit in (*above, *below)):
        return
    low = max((limit for limit in above if limit is not None), default=None)
    high = min((limit for limit in below if limit is not None), default=None)
    if low is None:
        assert high is not None, "asked for numbers without a limit"
        first = -(-high // BILLION) - 1
        whole = [first - number for number in range(tries)]
        low = high - BILLION
    else:
        first = low // BILLION + 1
        whole = [first + number for number in range(tries)]
        high = low + BILLION if high is None else high
    yield from map(str, whole)
    parts = min(tries, high - low - 1) + 1
    for number in range(1, parts):
        yield _decimal(low + (high - low) * number // parts)


def _billionths(values: Sequence[str]) -> int | None:
    is_number = values and _NUMBER.fullmatch(values[0])
    return int(Decimal(values[0]) * BILLION) if is_number else None


def _decimal(billionths: int) -> str:
    return format((Decimal(billionths) / BILLION).normalize(), "f")
