"""Join tokens: their text, and what is left of them after a use."""

import pytest

from ozymandias.cluster.founding import join_token
from ozymandias.cluster.founding.join_token import JoinRecord, JoinToken
from ozymandias.problems import Problem

FINGERPRINT = "F" * 43


def made(uses: int = 2, seconds: float = 60.0) -> tuple[JoinToken, JoinRecord]:
    return join_token.make(FINGERPRINT, 1000.0, seconds=seconds, uses=uses, by="root@h1")


def detail(found: JoinRecord | Problem) -> str:
    assert isinstance(found, Problem)
    return found.detail


def test_a_tokens_text_is_read_back_and_not_shown() -> None:
    """The text carries id, secret and fingerprint; the record and the repr carry no secret."""
    for _ in range(50):  # secrets and fingerprints may contain the separator
        token, record = made()
        assert join_token.parse(f" {token}\n") == token
        assert token.secret not in repr(token) and token.secret not in repr(record)


@pytest.mark.parametrize("text", ["", "ozyj", "ozy-12345678-abc", "ozyj-12345678-" + "a" * 75])
def test_what_is_no_token_is_told_so(text: str) -> None:
    """A slip of the hand is a problem with a way out, before anybody is asked."""
    found = join_token.parse(text)
    assert isinstance(found, Problem) and "not a join token" in found.detail and found.hint


def test_uses_are_counted_by_machine() -> None:
    """Two machines use a token for two; the second may come again, a third may not."""
    token, record = made(uses=2)
    for machine in ("m1", "m2", "m2"):
        left = join_token.spend(record, token.secret, machine, 1010.0)
        assert isinstance(left, JoinRecord)
        record = left
    assert record.uses_left == 0 and record.used_by == ("m1", "m2")
    assert "used up" in detail(join_token.spend(record, token.secret, "m3", 1010.0))


def test_wrong_unknown_and_expired() -> None:
    """Wrong and unknown sound alike; an expired one is told even to who used it before."""
    token, record = made()
    wrong = detail(join_token.spend(record, "A" * 32, "m1", 1010.0))
    assert wrong == detail(join_token.spend(None, token.secret, "m1", 1010.0))
    used = join_token.spend(record, token.secret, "m1", 1010.0)
    assert isinstance(used, JoinRecord)
    assert "expired" in detail(join_token.spend(used, token.secret, "m1", 2000.0))
