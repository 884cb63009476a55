"""Who asks: a holder of a token, another daemon of the cluster, or root on the Unix socket.

Tokens are known by their hashes (`store/tokens.py`); the file is read again when it changes, so a
token that is taken out of it ends at once, also for streams that are under way. Daemons call each
other with a key that each of them draws when it starts and writes into its own presence record:
whoever can read that can do anything anyway, and the key is gone with the lease. No address is
trusted: loopback proves nothing. What each may do is in `api/rights.py`.
"""

import hmac
import socket
import struct
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from aiohttp import web

from ozymandias.api.rights import RIGHT
from ozymandias.problems import FORBIDDEN, UNAUTHORIZED, ProblemError
from ozymandias.store.tokens import HashedToken, Right, hashed, parse_tokens
from ozymandias.telemetry import warn

IsPeer = Callable[[str, str], bool]  # node, key


@dataclass(frozen=True, slots=True, kw_only=True)
class Caller:
    """``name`` is for the record: `token:1f2e3d4c`, `node:n2` or `uid:0`."""

    name: str
    is_peer: bool = False
    right: Right = Right.ADMIN  # of who asked a peer, where it is one
    proof: str = field(default="", repr=False)  # the Authorization that was shown


CALLER = web.RequestKey("caller", Caller)


class Tokens:
    """The tokens that are good now."""

    def __init__(self, file: Path | None = None, tokens: tuple[HashedToken, ...] = ()) -> None:
        self._file = file
        self._tokens = tokens
        self._stamp: tuple[int, int, int] | None = None
        if file is not None:
            self._tokens = parse_tokens(file.read_text())  # OSError, ValueError: at the start
            self._stamp = _stamp(file)

    def __bool__(self) -> bool:
        return self._file is not None or bool(self._tokens)

    def find(self, token: str) -> HashedToken | None:
        """Compared in constant time, with every one of them."""
        self._look_again()
        digest = hashed(token).digest
        found = None
        for known in self._tokens:
            if hmac.compare_digest(known.digest, digest):
                found = known
        return found

    def _look_again(self) -> None:
        """A file that can't be read any more lets nobody in: that is how one takes tokens away."""
        if self._file is None:
            return
        stamp = _stamp(self._file)
        if stamp == self._stamp:
            return
        self._stamp = stamp
        try:
            self._tokens = parse_tokens(self._file.read_text())
        except (OSError, ValueError) as error:
            self._tokens = ()
            warn("api.tokens_unreadable", file=str(self._file), reason=str(error))


def _stamp(file: Path) -> tuple[int, int, int] | None:
    try:
        found = file.stat()
    except OSError:
        return None
    return found.st_mtime_ns, found.st_size, found.st_ino


@dataclass(frozen=True, slots=True, kw_only=True)
class Door:
    """How callers of one listener are told apart; ``tokens`` None is the Unix socket."""

    tokens: Tokens | None
    is_peer: IsPeer = lambda node, key: False

    def admit(self, request: web.Request) -> Caller:
        if self.tokens is None:
            return Caller(name=f"uid:{_uid(request)}")
        caller = self.check(request.headers.get("Authorization", ""))
        return replace(caller, right=_passed_on(request)) if caller.is_peer else caller

    def check(self, proof: str) -> Caller:
        """Who shows this; ProblemError UNAUTHORIZED when it proves nothing (any more)."""
        scheme, _, given = proof.partition(" ")
        given = given.strip()
        if scheme.lower() == "bearer" and self.tokens and (token := self.tokens.find(given)):
            return Caller(name=f"token:{token.id}", right=token.right, proof=proof)
        node, _, key = given.partition(":")
        if scheme.lower() == "peer" and key and self.is_peer(node, key):
            return Caller(name=f"node:{node}", is_peer=True, proof=proof)
        raise ProblemError(
            UNAUTHORIZED(
                "The request carries no valid token.",
                hint="`ozy context show` tells which cluster is asked; $OZY_TOKEN overrides.",
            )
        )

    def still_admits(self, caller: Caller) -> bool:
        """For streams: whether who was let in once would be let in now."""
        if self.tokens is None:
            return True
        try:
            self.check(caller.proof)
        except ProblemError:
            return False
        return True


def _passed_on(request: web.Request) -> Right:
    """The right of who asked the peer.

    It says nothing where it asks for itself, having checked already, or is of a version that knows
    no rights: such a daemon refuses files with any in them, so its callers may do everything.
    """
    given = request.headers.get(RIGHT, Right.ADMIN)
    try:
        return Right(given)
    except ValueError:
        raise ProblemError(
            FORBIDDEN(
                f"A peer passes on a right that this daemon does not know: {given[:32]!r}.",
                hint="Bring all hosts to the same version.",
            )
        ) from None


def _uid(request: web.Request) -> int:
    try:
        sock: Any = request.get_extra_info("socket")
        found = sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
    except (AttributeError, OSError):
        return -1
    _, uid, _ = struct.unpack("3i", found)
    return int(uid)
