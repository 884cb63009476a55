"""Restart policy and back-off: when a container is started again, or never.

A function of the policy, of how the run ended and of how many runs in a row were short; nothing is
remembered here. Each short run doubles the wait, from half a second up to a minute; a run that
lasted RESET_SECONDS forgives all before it. The jitter comes from a hash of who it is and how
often it failed, so that containers that crash together do not start together, and the same
question has the same answer. Attempts at making a pod wait by the same rule.
"""

import hashlib
from dataclasses import dataclass

from ozymandias.model.job import RestartMode, RestartPolicy

BACKOFF_FIRST_SECONDS = 0.5
BACKOFF_MAX_SECONDS = 60.0
BACKOFF_JITTER = 0.25  # up to this part of the wait is taken off
RESET_SECONDS = 60.0  # a run this long was a good one

_DOUBLINGS_MAX = 16  # keeps the power small however often it failed


@dataclass(frozen=True, slots=True, kw_only=True)
class Again:
    after_seconds: float
    failures: int  # short runs in a row, this one included


@dataclass(frozen=True, slots=True, kw_only=True)
class Never:
    """The policy lets it rest."""

    is_completed: bool  # it ended with 0; otherwise it failed
    failures: int


def backoff(failures: int, key: str) -> float:
    """Seconds to wait after that many failures in a row (1 or more)."""
    whole = BACKOFF_FIRST_SECONDS * 2.0 ** min(max(failures, 1) - 1, _DOUBLINGS_MAX)
    digest = hashlib.blake2b(f"{key}:{failures}".encode(), digest_size=8).digest()
    part = int.from_bytes(digest) / 2**64
    wait = min(whole, BACKOFF_MAX_SECONDS) * (1.0 - BACKOFF_JITTER * part)
    return round(max(wait, BACKOFF_FIRST_SECONDS), 1)


def decide(
    policy: RestartPolicy, *, failures: int, exit_code: int | None, uptime: float, key: str
) -> Again | Never:
    """What follows a run that ended (``exit_code`` None: it is unhealthy, or nobody knows).

    ``failures`` counts the short runs in a row before this one.
    """
    before = 0 if uptime >= RESET_SECONDS else failures
    succeeded = exit_code == 0
    match policy.mode:
        case RestartMode.NO:
            return Never(is_completed=succeeded, failures=before + 1)
        case RestartMode.ON_FAILURE:
            if succeeded:
                return Never(is_completed=True, failures=0)
            if policy.attempts_max is not None and before >= policy.attempts_max:
                return Never(is_completed=False, failures=before + 1)
        case RestartMode.ALWAYS | RestartMode.UNLESS_STOPPED:
            pass
    return Again(after_seconds=backoff(before + 1, key), failures=before + 1)
