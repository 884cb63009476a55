"""API tokens, and what is kept of them: an id and a hash, never the token itself.

A token is 192 random bits, so a plain SHA-256 of it can be turned back by nobody and needs no salt
and no slow hash. A file of tokens has one line each: `<id> sha256:<digest> <right>`. A line without
a right is an administrator's. A line that holds a bare token (16 characters or more) is taken as
well, for files written by hand; its id is then the beginning of its hash.
"""

import hashlib
import re
import secrets
from dataclasses import dataclass
from enum import StrEnum

TOKEN_CHARACTERS_MIN = 16
_HASHED = re.compile(r"([A-Za-z0-9_.-]{1,64})\s+sha256:([0-9a-f]{64})(?:\s+([a-z]{1,32}))?")
_BARE = re.compile(rf"[!-~]{{{TOKEN_CHARACTERS_MIN},512}}")


class Right(StrEnum):
    """What a token's holder may do; `api/rights.py` says what that is."""

    ADMIN = "admin"
    DEPLOY = "deploy"


@dataclass(frozen=True, slots=True, kw_only=True)
class HashedToken:
    id: str
    digest: bytes
    right: Right = Right.ADMIN

    def __str__(self) -> str:
        # Without a word for administrators: every daemon that knows hashes can read that.
        right = "" if self.right is Right.ADMIN else f" {self.right}"
        return f"{self.id} sha256:{self.digest.hex()}{right}"


def make_token() -> str:
    """A new token; its first part is its id and no secret."""
    return f"ozy-{secrets.token_hex(4)}-{secrets.token_urlsafe(24)}"


def hashed(token: str, right: Right = Right.ADMIN) -> HashedToken:
    found = hashlib.sha256(token.encode("utf-8", "surrogateescape")).digest()
    parts = token.split("-", 2)
    is_ours = len(parts) == 3 and parts[0] == "ozy" and len(parts[1]) == 8
    return HashedToken(id=parts[1] if is_ours else found.hex()[:8], digest=found, right=right)


def parse_tokens(text: str) -> tuple[HashedToken, ...]:
    """The tokens of a file; ValueError names the line that is none. Comments begin with #."""
    tokens = []
    for number, line in enumerate(text.splitlines(), 1):
        line = line.strip()
        if not line or line.startswith("#"):
            continue
        if match := _HASHED.fullmatch(line):
            right = _right(match[3] or Right.ADMIN, number)
            tokens.append(HashedToken(id=match[1], digest=bytes.fromhex(match[2]), right=right))
        elif _BARE.fullmatch(line):
            tokens.append(hashed(line))
        else:
            raise ValueError(
                f"line {number} is neither `<id> sha256:<64 hexadecimal digits> <right>` nor a"
                f" token of {TOKEN_CHARACTERS_MIN} characters or more"
            )
    return tuple(tokens)


def _right(word: str, number: int) -> Right:
    try:
        return Right(word)
    except ValueError:
        known = " and ".join(Right)
        raise ValueError(f"line {number} gives the right {word!r}; there are {known}") from None
