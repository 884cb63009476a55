"""Join tokens: what lets a host in, for a while and a number of times.

`ozyj-<id>-<secret>-<fingerprint>`: the id is no secret and names it in lists; of the secret only a
hash is kept, in etcd; the fingerprint is that of the cluster's authority, so that the joining host
knows whom it talks to before it says the secret. 192 random bits need no salt and no slow hash.

Whether a token is good, and what is left of it afterwards, is decided here, without IO; the door
commits it by compare-and-swap, so that the last use is given away once.
"""

import hashlib
import hmac
import re
import secrets
from dataclasses import dataclass, replace

from ozymandias.model.units import counted
from ozymandias.problems import JOIN_REFUSED, Problem

SECRET_BYTES = 24
SECONDS_DEFAULT = 3600.0
SECONDS_MAX = 7 * 86_400.0
USES_DEFAULT = 1
USES_MAX = 64

_SHAPE = re.compile(r"ozyj-([0-9a-f]{8})-([A-Za-z0-9_-]{32})-([A-Za-z0-9_-]{43})")
REMEDY = "`ozy cluster token create` on a host of the cluster makes another one."


@dataclass(frozen=True, slots=True, kw_only=True)
class JoinToken:
    """What the joining host holds."""

    id: str
    secret: str
    fingerprint: str

    def __str__(self) -> str:
        return f"ozyj-{self.id}-{self.secret}-{self.fingerprint}"

    def __repr__(self) -> str:
        return f"JoinToken({self.id})"


@dataclass(frozen=True, slots=True, kw_only=True)
class JoinRecord:
    """What the cluster keeps of it."""

    id: str
    digest: str
    expires: float  # wall clock of whoever checks it
    uses_left: int
    created: float
    created_by: str = ""
    used_by: tuple[str, ...] = ()  # machine ids: an interrupted join may ask again


def make(
    fingerprint: str, now: float, *, seconds: float, uses: int, by: str
) -> tuple[JoinToken, JoinRecord]:
    token = JoinToken(
        id=secrets.token_hex(4),
        secret=secrets.token_urlsafe(SECRET_BYTES),
        fingerprint=fingerprint,
    )
    record = JoinRecord(
        id=token.id,
        digest=_digest(token.secret),
        expires=now + seconds,
        uses_left=uses,
        created=now,
        created_by=by,
    )
    return token, record


def parse(text: str) -> JoinToken | Problem:
    match = _SHAPE.fullmatch(text.strip())
    if match is None:
        return JOIN_REFUSED("That is not a join token.", hint=REMEDY)
    return JoinToken(id=match[1], secret=match[2], fingerprint=match[3])


def spend(
    record: JoinRecord | None, secret: str, machine_id: str, now: float
) -> JoinRecord | Problem:
    """What is left of the token after this use, or why it is not good.

    A machine that used it before may ask again while it lasts: its first try was interrupted.
    """
    # One answer for a wrong id and a wrong secret: who guesses learns nothing.
    digest = record.digest if record else _digest("")
    if not hmac.compare_digest(digest, _digest(secret)) or record is None:
        return JOIN_REFUSED("The join token is not known here, or was revoked.", hint=REMEDY)
    if now > record.expires:
        minutes = counted(round((now - record.expires) / 60), "minute")
        return JOIN_REFUSED(f"The join token expired {minutes} ago.", hint=REMEDY)
    if machine_id in record.used_by:
        return record
    if record.uses_left <= 0:
        return JOIN_REFUSED("The join token is used up.", hint=REMEDY)
    return replace(record, uses_left=record.uses_left - 1, used_by=(*record.used_by, machine_id))


def _digest(secret: str) -> str:
    return hashlib.sha256(secret.encode()).hexdigest()
