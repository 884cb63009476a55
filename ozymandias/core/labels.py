"""What a node's labels are to a job: whether its rules hold there, and why not in words."""

from collections.abc import Iterable, Mapping

from ozymandias.model.job import LabelRule, LabelTest
from ozymandias.model.labels import matches, spelled


def unmet(rules: Iterable[LabelRule], labels: Mapping[str, str]) -> LabelRule | None:
    """The first rule that these labels do not satisfy."""
    return next((rule for rule in rules if not matches(rule, labels)), None)


def unmet_words(rule: LabelRule) -> str:
    """What a node is that a rule does not hold of, in words that follow "is"."""
    match rule.test:
        case LabelTest.EXISTS:
            return f"without label {rule.label}"
        case LabelTest.EQUAL | LabelTest.IN:
            return f"without label {spelled(rule)}"
    return f"excluded by {spelled(rule)}"  # it may well have the label, with another value
