"""Where a job's instances may be: rules on the labels of nodes, short or in full, and priorities.

role == infra          zone in [a, b]          gpu exists          cores > 4
{label: zone, test: in, values: [a, b]}        and in `prefer` with `weight: 10`

Other jobs and the nodes of a burst are in `jobspec/neighbours.py`.
"""

import re
from dataclasses import dataclass
from typing import Any

from ozymandias.jobspec.checks import (
    Choice,
    Integer,
    Schema,
    Text,
    expected,
    is_right,
    text_of,
)
from ozymandias.jobspec.loader import Mapping, Node, Scalar
from ozymandias.jobspec.neighbours import BURST, NEIGHBOURS, Draft
from ozymandias.jobspec.records import Field, Given, ListOf, Marked, Record
from ozymandias.jobspec.report import Mark, Place, Wrong, did_you_mean, quoted
from ozymandias.model.job import LabelRule, LabelTest, PlacementRules
from ozymandias.model.labels import contradiction_words, contradictions
from ozymandias.model.node import LABEL_NAME, LABEL_VALUE
from ozymandias.model.record import replace
from ozymandias.model.settings import PRIORITY_CLASSES, PRIORITY_MAX

WEIGHT_MAX = 100
RULES_MAX = 50
VALUES_MAX = 100

_RULE = re.compile(r"\s*(\S+?)\s*(==|!=|<=|>=|=>|=<|=~|=|<|>|\s(?:in|exists)\b)\s*(.*?)\s*")
_OTHER_RULE = re.compile(r"\s*(\S+?)(?:\s+(\S{1,20})\s+|\s*(?<=\w)([^\w\s]{1,3})\s*)(\S.*)")
_SIGNS = re.compile(r"[=!<>~]+")
_OPERATORS = "there are ==, !=, in, exists, < and >"
_NUMBER = re.compile(r"[-+]?[0-9]{1,15}(\.[0-9]{1,9})?")
_TESTS = {test.value: test for test in LabelTest} | {"=": LabelTest.EQUAL}
_MEANT = {"<=": 'write "<" and the next number', ">=": 'write ">" and the number before'}

NAME = Text("a label's name such as role or example.com/zone", LABEL_NAME, 63)
VALUE = Text("a label's value such as infra", LABEL_VALUE, 63)


@dataclass(frozen=True, slots=True)
class Rule:
    """One rule, as a text or a mapping."""

    is_weighed: bool = False

    @property
    def expects(self) -> str:
        return 'a rule on labels such as "role == infra", "zone in [a, b]" or "gpu exists"'

    def read(self, node: Node, at: Place) -> LabelRule | Any:
        if isinstance(node, Mapping):
            rule: Any = (_WEIGHED if self.is_weighed else _PLAIN).read(node, at)
        else:
            rule = self._short(node)
        if is_right(rule) and self.is_weighed and not rule.weight:
            return replace(rule, weight=1)
        return rule

    def _short(self, node: Node) -> LabelRule:
        text = text_of(node, self.expects, length_max=1024)
        found = _RULE.fullmatch(text)
        if not found:
            bare = re.fullmatch(LABEL_NAME, text.strip())
            hint = f'for example "{text.strip()} exists"' if bare else ""
            if odd := _OTHER_RULE.fullmatch(text):
                operator = quoted(odd[2] or odd[3])
                raise Wrong(f"there is no operator {operator} for labels", _OPERATORS)
            raise expected(self.expects, node, hint)
        label, sign, rest = found[1], found[2].strip(), found[3]
        if sign in _MEANT:
            raise Wrong(f"there is no {quoted(sign)} for labels", _MEANT[sign])
        if longer := _SIGNS.match(rest):
            sign += longer[0]  # no value begins like that
        if sign not in _TESTS:
            raise Wrong(f"there is no operator {quoted(sign)} for labels", _OPERATORS)
        values = _values(rest) if sign == "in" else ((rest,) if rest else ())
        return checked(LabelRule(label=label, test=_TESTS[sign], values=values))

    def schema(self) -> Schema:
        text = {"type": "string", "maxLength": 1024}
        record = _WEIGHED if self.is_weighed else _PLAIN
        return {"anyOf": [text, record.schema()]}


def _values(text: str) -> tuple[str, ...]:
    inner = text[1:-1] if text[:1] + text[-1:] in ("[]", "()") else text
    return tuple(part.strip() for part in inner.split(",") if part.strip())


def parse_rule(text: str) -> LabelRule:
    """A rule in its short form, where there is no file around it; Wrong says what is wrong."""
    return Rule()._short(Scalar(text, text, Mark(1, 1)))


def checked(rule: LabelRule) -> LabelRule:
    """The rule, if it makes sense; Wrong otherwise."""
    if not re.fullmatch(LABEL_NAME, rule.label):
        raise Wrong(f"{quoted(rule.label)} is not {NAME.expects}")
    for value in rule.values:
        if not re.fullmatch(LABEL_VALUE, value):
            is_several = re.search(r"[\s,\[(]", value) is not None
            raise Wrong(f"{quoted(value)} is not {VALUE.expects}", _for_several(rule) * is_several)
    count, test = len(rule.values), rule.test
    if test is LabelTest.EXISTS and count:
        raise Wrong('"exists" asks for no value', f'"{rule.label} == {rule.values[0]}" compares')
    if test is LabelTest.IN and not 1 <= count <= VALUES_MAX:
        raise Wrong(f'"in" asks for 1 to {VALUES_MAX} values', f'"{rule.label} in [a, b]"')
    if test not in (LabelTest.EXISTS, LabelTest.IN) and count != 1:
        raise Wrong(f"{quoted(test)} asks for one value", _for_several(rule))
    is_ordered = test in (LabelTest.LESS, LabelTest.MORE)
    if is_ordered and not _NUMBER.fullmatch(rule.values[0]):
        hint = "such as 4 or 2.5, with up to 15 digits and 9 decimals"
        raise Wrong(f"{quoted(test)} compares numbers, and {quoted(rule.values[0])} is none", hint)
    return rule


def _for_several(rule: LabelRule) -> str:
    """What to write instead of one rule with several values, or of several in one."""
    match rule.test:
        case LabelTest.EQUAL:
            return f'for several: "{rule.label} in [a, b]"'
        case LabelTest.IN:
            return ""
    return f'for several, each a rule of its own: "{rule.label} {rule.test} …"'


def _build_rule(given: Given) -> LabelRule:
    listed: tuple[Marked[str], ...] = given.get("values", ())
    return checked(
        LabelRule(
            label=given.values["label"],
            test=given.get("test", LabelTest.EQUAL),
            values=tuple(marked.value for marked in listed),
            weight=given.get("weight", 0),
        )
    )


_FIELDS = (
    Field(name="label", check=NAME, is_required=True, doc="The label's name."),
    Field(
        name="test",
        check=Choice({test.value: test for test in LabelTest}),
        default="==",
        doc="How the node's label is compared; < and > compare numbers.",
    ),
    Field(
        name="values",
        aliases=("value",),
        check=ListOf(
            item=VALUE, title="a list of label values", items_max=VALUES_MAX, accepts_single=True
        ),
        doc="What it is compared with: one value, several for in, none for exists.",
    ),
)
_MEANT_IN_FULL = {
    "key": 'did you mean "label"?',
    "operator": 'did you mean "test"?',
    "op": 'did you mean "test"?',
    "in": 'write "test: in" and "values: [a, b]"',
    "exists": 'write "test: exists"',
}
_PLAIN = Record(
    title="a rule on labels",
    fields=_FIELDS,
    build=_build_rule,
    meant={**_MEANT_IN_FULL, "weight": 'what is required has no weight; did you mean "prefer"?'},
)
_WEIGHED = Record(
    title="a rule on labels",
    fields=(
        *_FIELDS,
        Field(
            name="weight",
            check=Integer(1, WEIGHT_MAX),
            default="1",
            doc="How much it counts beside the others.",
        ),
    ),
    build=_build_rule,
    meant=_MEANT_IN_FULL,
)


@dataclass(frozen=True, slots=True)
class Priority:
    """A number, or the name of a class."""

    @property
    def expects(self) -> str:
        return f"a whole number from 0 to {PRIORITY_MAX}, or a class such as platform-critical"

    def read(self, node: Node, at: Place) -> int:
        if isinstance(node, Scalar) and isinstance(node.value, str):
            text, own = node.text, at.report.priority_classes
            # A predefined class means the same in every cluster.
            known = {**(own or {}), **PRIORITY_CLASSES}
            if text in known:
                return known[text]
            if not text.isdigit():
                begun = next((name for name in known if name.startswith(text)), "")
                hint = f'did you mean "{begun}"?' if begun else did_you_mean(text, known)
                if own is None and not begun:
                    asks = "classes of a cluster's own are known there alone: ozy plan asks it"
                    hint = f"{hint} {asks}" if hint else asks
                raise expected(self.expects, node, hint)
        return Integer(0, PRIORITY_MAX).read(node, at)

    def schema(self) -> Schema:
        # Any name: a cluster may have classes of its own.
        return {"anyOf": [Integer(0, PRIORITY_MAX).schema(), {"type": "string", "maxLength": 63}]}


def _build_placement(given: Given) -> Draft:
    required: tuple[Marked[LabelRule], ...] = given.get("require", ())
    _check_required(required)
    rules = PlacementRules(
        require=tuple(marked.value for marked in required),
        prefer=tuple(marked.value for marked in given.get("prefer", ())),
        spread=given.get("spread", ""),
        max_per_node=given.get("max_per_node", 0),
        burst=given.get("burst"),
    )
    return Draft(rules=rules, near=given.get("near", ()), apart=given.get("apart", ()))


def _check_required(required: tuple[Marked[LabelRule], ...]) -> None:
    """Each contradiction is complained about at the last rule that is part of it."""
    for rules in contradictions(marked.value for marked in required):
        last = next(marked for marked in required if marked.value == rules[-1])
        last.wrong(contradiction_words(rules))


PLACEMENT = Record(
    title="placement",
    fields=(
        Field(
            name="require",
            check=ListOf(
                item=Rule(),
                title='a list of rules on labels such as "role == infra"',
                items_max=RULES_MAX,
                accepts_single=True,
            ),
            doc="What a node's labels must be, all of it.",
        ),
        Field(
            name="prefer",
            check=ListOf(
                item=Rule(is_weighed=True),
                title='a list of rules on labels such as "disk == ssd"',
                items_max=RULES_MAX,
                accepts_single=True,
            ),
            doc="Nodes that match are filled first, those that match more before others.",
        ),
        Field(
            name="near",
            check=NEIGHBOURS,
            doc="Other jobs: on nodes where one of theirs is. With a weight it is preferred only.",
        ),
        Field(
            name="apart",
            check=NEIGHBOURS,
            doc="Other jobs: on nodes where none of theirs is, and they keep away too. With a"
            " weight it is preferred only.",
        ),
        Field(
            name="spread",
            check=NAME,
            doc="A label: as evenly over its values as may be; nodes without it count as one more"
            " value.",
        ),
        Field(
            name="max_per_node",
            check=Integer(1, 10_000),
            default="no limit",
            doc="At most so many instances on one node.",
        ),
        Field(
            name="burst",
            check=BURST,
            doc="Above `after` live instances the rest go to these nodes, which are not used"
            " before, and come home when there is room.",
        ),
    ),
    build=_build_placement,
    meant={
        "constraints": 'did you mean "require"?',
        "affinity": 'did you mean "prefer", or "near" for other jobs?',
        "anti_affinity": 'did you mean "apart"?',
        "node": 'write require: ["name == …"] on a label of the node',
    },
)
