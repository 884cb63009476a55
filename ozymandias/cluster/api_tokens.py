"""New tokens for the API, and files of tokens that get a line more.

Nothing of it goes over the API: whoever may write the file of a daemon is root there, and may do
everything anyway. So no token can make another.
"""

import os
from dataclasses import dataclass, field
from pathlib import Path

from ozymandias.problems import CONFIG_INVALID, ProblemError
from ozymandias.store.tokens import Right, hashed, make_token, parse_tokens


@dataclass(frozen=True, slots=True, kw_only=True)
class Made:
    id: str
    right: str
    token: str = field(repr=False)
    line: str  # what a daemon's file of tokens has of it


def create(right: str, file: Path | None = None) -> Made:
    """A new token; its line is added to the file, where one is given."""
    token = make_token()
    known = hashed(token, Right(right))
    if file is not None:
        _add(file, str(known))
    return Made(id=known.id, right=right, token=token, line=str(known))


def _add(file: Path, line: str) -> None:
    """One write at the end: a daemon that reads meanwhile sees all of the line or nothing.

    A file that no daemon could read is left as it is: it would lock everybody out.
    """
    try:
        descriptor = os.open(file, os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW, 0o600)
        with os.fdopen(descriptor, "r+b", buffering=0) as stream:
            text = stream.read().decode()
            parse_tokens(text)
            before = "\n" if text and not text.endswith("\n") else ""
            stream.write(f"{before}{line}\n".encode())
    except (OSError, ValueError) as error:
        raise ProblemError(
            CONFIG_INVALID(
                f"{file}: {getattr(error, 'strerror', None) or error}",
                hint="No token was made. The file of a daemon is root's, and has a line per token.",
            )
        ) from error
