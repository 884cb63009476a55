"""The small language of `ozy what-if`: ``lose n2; add n4 16G; scale web 12``.

Steps are separated by semicolons or new lines, words by spaces. A step that can't be read is a
problem with the column at which it goes wrong. What the steps lead to is in `core/outlook.py`.
"""

import re
from collections.abc import Callable
from dataclasses import dataclass, field
from difflib import get_close_matches
from enum import StrEnum

from ozymandias.model.job import DEFAULT_NAMESPACE, JobKey, JobName, Namespace
from ozymandias.model.node import LABEL_NAME, LABEL_VALUE, NodeName, Resources
from ozymandias.model.units import parse_size
from ozymandias.problems import INVALID_WHAT_IF, Problem

STEPS_MAX = 50
COUNT_MAX = 100_000
MEMORY_MAX = 2**50
DISK_DEFAULT = 2**40  # of a node that is only supposed to be there: its disk is not what matters

_NAME = re.compile(r"[a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?")
_JOB = re.compile(r"(?:([a-z0-9][-a-z0-9]{0,62})/)?([a-z0-9][-a-z0-9]{0,62})")
_LABEL = re.compile(f"({LABEL_NAME})=({LABEL_VALUE})")


class Verb(StrEnum):
    LOSE = "lose"
    ADD = "add"
    START = "start"
    CORDON = "cordon"
    UNCORDON = "uncordon"
    DRAIN = "drain"
    UNDRAIN = "undrain"
    SCALE = "scale"
    STOP = "stop"


USAGE = {
    Verb.LOSE: "lose NODE...",
    Verb.ADD: "add NODE MEMORY [DISK] [LABEL=VALUE...]",
    Verb.START: "start NODE",
    Verb.CORDON: "cordon NODE",
    Verb.UNCORDON: "uncordon NODE",
    Verb.DRAIN: "drain NODE",
    Verb.UNDRAIN: "undrain NODE",
    Verb.SCALE: "scale JOB INSTANCES",
    Verb.STOP: "stop JOB",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """One thing to be supposed; which members matter is the verb's affair."""

    verb: Verb
    text: str
    column: int = 1  # where it begins, counted from one
    nodes: tuple[NodeName, ...] = ()
    job: JobKey | None = None
    count: int = 0
    capacity: Resources = Resources()
    labels: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class _Word:
    text: str
    column: int


class _Unreadable(Exception):
    def __init__(self, problem: Problem) -> None:
        self.problem = problem


def complaint(column: int, detail: str, hint: str = "") -> Problem:
    """A problem with a step, by the place where it stands."""
    return INVALID_WHAT_IF(f"Column {column}: {detail}", hint=hint, column=column)


def parse_steps(text: str) -> tuple[Step, ...] | Problem:
    """The steps in their order, or what is wrong with the first that can't be read."""
    steps: list[Step] = []
    try:
        for match in re.finditer(r"[^;\n]+", text):
            words = [
                _Word(w.group(), match.start() + w.start() + 1)
                for w in re.finditer(r"\S+", match.group())
            ]
            if not words:
                continue
            if len(steps) == STEPS_MAX:
                raise _unreadable(words[0], f"there are more than {STEPS_MAX} steps.")
            steps.append(_step(words))
    except _Unreadable as error:
        return error.problem
    if not steps:
        return complaint(1, "there is no step.", f"For example: lose n1. {_known()}")
    return tuple(steps)


def _known() -> str:
    return "Steps: " + "; ".join(USAGE.values()) + "."


def _unreadable(word: _Word, detail: str, hint: str = "") -> _Unreadable:
    return _Unreadable(complaint(word.column, detail, hint))


def _step(words: list[_Word]) -> Step:
    first, rest = words[0], words[1:]
    if first.text not in list(Verb):
        close = get_close_matches(first.text, list(Verb), n=1)
        meant = f" Did you mean {close[0]}?" if close else ""
        raise _unreadable(first, f"there is no step {first.text[:40]!r}.{meant}", _known())
    verb = Verb(first.text)
    text = " ".join(word.text for word in words)
    if not rest:
        raise _unreadable(first, f"{verb} needs more words.", f"It is written {USAGE[verb]}.")
    return _READERS[verb](Step(verb=verb, text=text, column=first.column), rest)


def _read_nodes(step: Step, words: list[_Word]) -> Step:
    most = len(words) if step.verb is Verb.LOSE else 1
    _no_more(step, words[most:])
    names = tuple(_node(word) for word in words)
    return _with(step, nodes=names)


def _read_add(step: Step, words: list[_Word]) -> Step:
    name = _node(words[0])
    if len(words) < 2:
        detail = f"how much memory {name} has is not said."
        raise _unreadable(words[0], detail, f"It is written {USAGE[Verb.ADD]}.")
    sizes = [word for word in words[1:] if "=" not in word.text]
    _no_more(step, sizes[2:])
    memory = _size(sizes[0]) if sizes else 0
    if not memory:
        raise _unreadable(words[1], "a node without memory can't take anything.")
    disk = _size(sizes[1]) if len(sizes) > 1 else DISK_DEFAULT
    labels = {}
    for word in words[1:]:
        if "=" in word.text:
            match = _LABEL.fullmatch(word.text)
            if match is None:
                raise _unreadable(word, f"{word.text[:80]!r} is not LABEL=VALUE.")
            name_, _, value = word.text.partition("=")
            labels[name_] = value
    capacity = Resources(memory_bytes=memory, disk_bytes=disk)
    return _with(step, nodes=(name,), capacity=capacity, labels=labels)


def _read_scale(step: Step, words: list[_Word]) -> Step:
    job = _job(words[0])
    if len(words) < 2:
        hint = f"It is written {USAGE[Verb.SCALE]}."
        raise _unreadable(words[0], f"to how many {job} shall be scaled is not said.", hint)
    _no_more(step, words[2:])
    number = words[1].text
    if not number.isdecimal() or len(number) > 6 or int(number) > COUNT_MAX:
        detail = f"{number[:40]!r} is not a number of instances from 0 to {COUNT_MAX}."
        raise _unreadable(words[1], detail)
    return _with(step, job=job, count=int(number))


def _read_stop(step: Step, words: list[_Word]) -> Step:
    _no_more(step, words[1:])
    return _with(step, job=_job(words[0]))


_READERS: dict[Verb, Callable[[Step, list[_Word]], Step]] = {
    Verb.LOSE: _read_nodes,
    Verb.ADD: _read_add,
    Verb.START: _read_nodes,
    Verb.CORDON: _read_nodes,
    Verb.UNCORDON: _read_nodes,
    Verb.DRAIN: _read_nodes,
    Verb.UNDRAIN: _read_nodes,
    Verb.SCALE: _read_scale,
    Verb.STOP: _read_stop,
}


def _with(step: Step, **members: object) -> Step:
    known = {"verb": step.verb, "text": step.text, "column": step.column}
    return Step(**{**known, **members})  # type: ignore[arg-type]


def _no_more(step: Step, words: list[_Word]) -> None:
    if words:
        detail = f"{words[0].text[:40]!r} is one word too many."
        raise _unreadable(words[0], detail, f"It is written {USAGE[step.verb]}.")


def _node(word: _Word) -> NodeName:
    if not _NAME.fullmatch(word.text):
        raise _unreadable(word, f"{word.text[:80]!r} can't be the name of a node.")
    return NodeName(word.text)


def _job(word: _Word) -> JobKey:
    match = _JOB.fullmatch(word.text)
    if match is None:
        raise _unreadable(word, f"{word.text[:80]!r} is not JOB or NAMESPACE/JOB.")
    namespace, name = match.groups()
    return JobKey(Namespace(namespace or DEFAULT_NAMESPACE), JobName(name))


def _size(word: _Word) -> int:
    try:
        size = parse_size(word.text)
    except ValueError as error:
        raise _unreadable(word, f"{error}.") from None
    if size > MEMORY_MAX:
        raise _unreadable(word, f"{word.text[:40]} is more than any machine has.")
    return size
