"""API tokens, and what is kept of them: an id and a hash, never the token itself.

A token is 192 random bits, so a plain SHA-256 of it can be turned back by nobody and needs no salt
and no slow hash. A file of tokens has one line each: `<id> sha256:<digest>`. A line that holds a
bare token (16 characters or more) is taken as well, for files written by hand; its id is then the
beginning of its hash.
"""

import hashlib
import re
import secrets
from dataclasses import dataclass

TOKEN_CHARACTERS_MIN = 16
_HASHED = re.compile(r"([A-Za-z0-9_.-]{1,64})\s+sha256:([0-9a-f]{64})")
_BARE = re.compile(rf"[!-~]{{{TOKEN_CHARACTERS_MIN},512}}")


@dataclass(frozen=True, slots=True, kw_only=True)
class HashedToken:
    id: str
    digest: bytes

    def __str__(self) -> str:
        return f"{self.id} sha256:{self.digest.hex()}"


def make_token() -> str:
    """A new token; its first part is its id and no secret."""
    return f"ozy-{secrets.token_hex(4)}-{secrets.token_urlsafe(24)}"


def hashed(token: str) -> HashedToken:
    found = hashlib.sha256(token.encode("utf-8", "surrogateescape")).digest()
    parts = token.split("-", 2)
    is_ours = len(parts) == 3 and parts[0] == "ozy" and len(parts[1]) == 8
    return HashedToken(id=parts[1] if is_ours else found.hex()[:8], digest=found)


def parse_tokens(text: str) -> tuple[HashedToken, ...]:
    """The tokens of a file; ValueError names the line that is none. Comments begin with #."""
    tokens = []
    for number, line in enumerate(text.splitlines(), 1):
        line = line.strip()
        if not line or line.startswith("#"):
            continue
        if match := _HASHED.fullmatch(line):
            tokens.append(HashedToken(id=match[1], digest=bytes.fromhex(match[2])))
        elif _BARE.fullmatch(line):
            tokens.append(hashed(line))
        else:
            raise ValueError(
                f"line {number} is neither `<id> sha256:<64 hexadecimal digits>` nor a token of"
                f" {TOKEN_CHARACTERS_MIN} characters or more"
            )
    return tuple(tokens)
