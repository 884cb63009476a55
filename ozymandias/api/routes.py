"""What a route says of itself: the one table behind the application, its checks and its document.

A handler reads nothing of the query that its route does not declare, and a request with a parameter
that is not declared, or that is not what was declared, is refused before the handler sees it.
"""

import json
import re
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any

from aiohttp import web

from ozymandias.problems import (
    HOST_NOT_ALLOWED,
    INVALID_REQUEST,
    RATE_LIMITED,
    STORE_UNAVAILABLE,
    UNAUTHORIZED,
    Kind,
    ProblemError,
)

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]

# What every route under /v1 may answer, whatever it does.
EVERYWHERE = (INVALID_REQUEST, UNAUTHORIZED, HOST_NOT_ALLOWED, RATE_LIMITED, STORE_UNAVAILABLE)

_WHOLE = re.compile(r"[0-9]{1,19}(\.0)?")
_NUMBER = re.compile(r"[0-9]{1,13}(\.[0-9]{1,400})?(e[-+]?[0-9]{1,3})?")
_FLAGS = {"0": False, "1": True, "false": False, "true": True}


@dataclass(frozen=True, slots=True, kw_only=True)
class Parameter:
    """One of the query. ``schema`` is JSON Schema; its type says how the text is read."""

    name: str
    about: str
    schema: Mapping[str, Any]

    def read(self, text: str) -> Any:
        """ProblemError when the text is not of this kind."""
        kind = self.schema.get("type")
        if kind == "boolean":
            if text.lower() not in _FLAGS:
                raise self._refused("must be 1, 0, true or false")
            return _FLAGS[text.lower()]
        if kind in ("integer", "number"):
            return self._read_number(text, kind)
        most = self.schema["maxLength"]
        if len(text) > most:
            raise self._refused(f"must have at most {most} characters")
        if not re.fullmatch(self.schema.get("pattern", "(?s:.*)"), text):
            raise self._refused(f"must be like {self.schema['pattern']}")
        return text

    def _read_number(self, text: str, kind: str) -> float | int:
        least, most = self.schema["minimum"], self.schema["maximum"]
        pattern = _WHOLE if kind == "integer" else _NUMBER
        if pattern.fullmatch(text.lower()):
            value = int(text.partition(".")[0]) if kind == "integer" else float(text)
            if least <= value <= most:
                return value
        word = "whole number" if kind == "integer" else "number"
        raise self._refused(f"must be a {word} from {least} to {most}")

    def _refused(self, why: str) -> ProblemError:
        return ProblemError(INVALID_REQUEST(f"{self.name} {why}."))


def text(name: str, about: str, characters_max: int = 253) -> Parameter:
    return Parameter(name=name, about=about, schema={"type": "string", "maxLength": characters_max})


def cursor() -> Parameter:
    shape = {"type": "string", "maxLength": 1024, "pattern": "^[A-Za-z0-9_-]*$"}
    return Parameter(name="cursor", about="The `next` of the page before.", schema=shape)


def flag(name: str, about: str) -> Parameter:
    return Parameter(name=name, about=about, schema={"type": "boolean"})


def whole(name: str, about: str, *, least: int = 0, most: int = 10**9) -> Parameter:
    limits = {"type": "integer", "minimum": least, "maximum": most}
    return Parameter(name=name, about=about, schema=limits)


def number(name: str, about: str, *, most: float = 1e12) -> Parameter:
    return Parameter(
        name=name, about=about, schema={"type": "number", "minimum": 0, "maximum": most}
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Body:
    """What is sent: a type of `api/models.py` as JSON, or a job file as YAML or JSON."""

    model: type | None = None  # None: a job file

    @property
    def media(self) -> tuple[str, ...]:
        return ("application/json",) if self.model else ("application/yaml", "application/json")


@dataclass(frozen=True, slots=True, kw_only=True)
class Route:
    method: str
    path: str
    handler: Handler
    about: str  # the first line is the summary
    answers: Mapping[int, Any]  # status -> type of `api/models.py`, or str for other media
    media: tuple[str, ...] = ("application/json",)
    problems: tuple[Kind, ...] = ()
    query: tuple[Parameter, ...] = ()
    body: Body | None = None
    headers: tuple[str, ...] = ()  # request headers that it heeds
    change: str = ""  # what it changes, as the audit calls it; "" for what only reads
    is_open: bool = False  # asks for no token

    @property
    def key(self) -> tuple[str, str]:
        return self.method, self.path

    def read_query(self, request: web.Request) -> dict[str, Any]:
        """The declared parameters that are given; ProblemError for any other."""
        known = {parameter.name: parameter for parameter in self.query}
        found = {}
        for name, given in request.query.items():
            if name not in known:
                names = ", ".join(known) or "none"
                raise ProblemError(
                    INVALID_REQUEST(
                        f"There is no parameter {json.dumps(name[:100])} here.",
                        hint=f"Known here: {names}.",
                    )
                )
            if name in found:
                raise ProblemError(INVALID_REQUEST(f"{name} is given twice."))
            found[name] = known[name].read(given)
        return found
