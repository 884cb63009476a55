"""Collecting every complaint about a job file, each with its line, column and path.

A check that finds something wrong raises Wrong; the walker above it notes that at the place it was
looking at and goes on with the next field. So one run shows all that is wrong. Complaints are
counted but no longer kept beyond a limit: a broken file must not cost more than a good one.
"""

import difflib
from collections.abc import Iterable, Mapping
from typing import NamedTuple

from ozymandias.model.units import counted, is_or_are
from ozymandias.problems import FieldError

ERRORS_MAX = 100  # kept and shown; the rest is only counted
GUESS_LENGTH_MAX = 40  # a longer word is no misspelt field
GUESSES_MAX = 30  # guessing what was meant is the costly part of complaining
SHOWN_LENGTH_MAX = 60  # of a value quoted in a complaint
STEP_LENGTH_MAX = 63  # of one key in a path


class Mark(NamedTuple):
    """A place in the file; both count from 1."""

    line: int
    column: int


class Wrong(Exception):
    """What a check found; the walker that catches it knows where it is."""

    def __init__(self, detail: str, hint: str = "", *, mark: Mark | None = None) -> None:
        super().__init__(detail)
        self.detail = detail
        self.hint = hint
        self.mark = mark


class Report:
    """The complaints so far; and what a cluster would know, if one is asked."""

    def __init__(self, priority_classes: Mapping[str, int] | None = None) -> None:
        self.priority_classes = priority_classes  # of the cluster's settings; None: no cluster
        self._errors: list[FieldError] = []
        self._omitted = 0
        self._guesses = 0

    def may_guess(self) -> bool:
        """Whether one more misspelt word is worth a guess."""
        self._guesses += 1
        return self._guesses <= GUESSES_MAX and not self.is_full

    @property
    def count(self) -> int:
        return len(self._errors) + self._omitted

    @property
    def is_full(self) -> bool:
        return len(self._errors) >= ERRORS_MAX

    def add(self, mark: Mark, pointer: str, detail: str, hint: str = "") -> None:
        if self.is_full:
            self._omitted += 1
            return
        self._errors.append(
            FieldError(
                pointer=pointer, line=mark.line, column=mark.column, detail=detail, hint=hint
            )
        )

    def add_last(self, mark: Mark, detail: str, hint: str = "") -> None:
        """Why the file could not be read further: kept however many there are before it."""
        error = FieldError(pointer="", line=mark.line, column=mark.column, detail=detail, hint=hint)
        self._errors.append(error)

    def errors(self) -> tuple[FieldError, ...]:
        """In the file's order, with a last line for those that were left out."""
        ordered = sorted(self._errors, key=lambda e: (e.line, e.column))
        if self._omitted:
            last = ordered[-1]
            more = f"{counted(self._omitted, 'more error')} {is_or_are(self._omitted)}"
            ordered.append(
                FieldError(
                    pointer="",
                    line=last.line,
                    column=last.column,
                    detail=f"{more} not shown",
                )
            )
        return tuple(ordered)


class Place(NamedTuple):
    """Where a check is looking: the report to write to and the way from the top of the file.

    Made for every value, but its path is spelt out only where something is wrong.
    """

    report: Report
    parent: "Place | None" = None
    key: str | int = ""

    def inside(self, key: str | int) -> "Place":
        return Place(self.report, self, key)

    @property
    def path(self) -> str:
        steps: list[str] = []
        place = self
        while place.parent is not None:
            steps.append(shown(str(place.key), STEP_LENGTH_MAX))
            place = place.parent
        return ".".join(reversed(steps))

    def wrong(self, mark: Mark, detail: str, hint: str = "") -> None:
        self.report.add(mark, "" if self.report.is_full else self.path, detail, hint)


def shown(text: str, limit: int = SHOWN_LENGTH_MAX) -> str:
    """Text as it may stand in a message: one line, printable, not too long."""
    if len(text) <= limit and text.isprintable():
        return text
    cut = text if len(text) <= limit else text[: limit - 1] + "…"
    return "".join(c if c.isprintable() else repr(c)[1:-1] for c in cut)


def quoted(text: str) -> str:
    return f'"{shown(text)}"'


def nearest(word: str, known: Iterable[str]) -> str:
    """The known word that was probably meant, or ""."""
    if len(word) > GUESS_LENGTH_MAX:
        return ""
    by_folded = {_folded(k): k for k in known}
    found = difflib.get_close_matches(_folded(word), by_folded, n=1, cutoff=0.6)
    return by_folded[found[0]] if found else ""


def did_you_mean(word: str, known: Iterable[str]) -> str:
    guess = nearest(word, known)
    return f'did you mean "{guess}"?' if guess else ""


def _folded(word: str) -> str:
    return word.lower().replace("-", "_")
