"""Long lists in pieces: `limit`, and an opaque cursor `next` that names where the piece ended.

Rows have an order of their own, and the cursor is the place of the last one in it. So a list that
changes between two pages neither repeats nor skips what was there all the time.
"""

import base64
import json
from collections.abc import Callable, Sequence
from typing import Any

from ozymandias.problems import INVALID_REQUEST, ProblemError

LIMIT_MAX = 10_000

Document = dict[str, Any]
Place = tuple[str | int | float, ...]
Key = Callable[[Document], Place]


def page(rows: Sequence[Document], key: Key, *, limit: int | None, cursor: str) -> Document:
    """Up to ``limit`` rows behind the cursor, in the order of ``key``."""
    limit = limit or LIMIT_MAX
    rows = sorted(rows, key=key)
    if cursor:
        place = _place(cursor, key, rows)
        rows = [row for row in rows if key(row) > place]
    return {
        "items": rows[:limit],
        "next": _cursor(key, rows[limit - 1 :]) if rows[limit:] else None,
    }


def page_back(rows: Sequence[Document], key: Key, *, limit: int | None, cursor: str) -> Document:
    """The newest ``limit`` rows, or those before the cursor; in the order of ``key``."""
    limit = limit or LIMIT_MAX
    rows = sorted(rows, key=key)
    if cursor:
        place = _place(cursor, key, rows)
        rows = [row for row in rows if key(row) < place]
    return {"items": rows[-limit:], "next": _cursor(key, rows[-limit:]) if rows[:-limit] else None}


def _cursor(key: Key, rows: Sequence[Document]) -> str:
    text = json.dumps(key(rows[0]), separators=(",", ":"))
    return base64.urlsafe_b64encode(text.encode()).decode().rstrip("=")


def _place(cursor: str, key: Key, rows: Sequence[Document]) -> Place:
    """ProblemError for what is no cursor of this list."""
    try:
        padded = cursor + "=" * (-len(cursor) % 4)
        found = json.loads(base64.b64decode(padded, altchars=b"-_", validate=True))
        place = tuple(found)
        if not isinstance(found, list) or not all(type(p) in (str, int, float) for p in place):
            raise ValueError("not a place")
        if rows:
            sample = key(rows[0])
            assert_alike = [_kind(a) == _kind(b) for a, b in zip(place, sample, strict=True)]
            if not all(assert_alike):
                raise ValueError("not a place in this list")
    except (ValueError, TypeError, RecursionError):
        raise ProblemError(INVALID_REQUEST("cursor is not one that a list has given.")) from None
    return place


def _kind(part: str | int | float) -> type:
    return str if isinstance(part, str) else float
