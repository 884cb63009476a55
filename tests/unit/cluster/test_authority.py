"""The cluster's authority: what it signs, for whom, for how long, and what it does not."""

import time

import pytest

from ozymandias.cluster.founding import authority
from ozymandias.cluster.founding.authority import Pair

NOW = time.time()
DAY = 86_400


@pytest.fixture(scope="module")
def pair() -> Pair:
    return authority.make_authority("c1", NOW)


def signed(pair: Pair, key: str, *, now: float = NOW, use: authority.Use = "host") -> str:
    request = authority.make_request(key, "whatever it says")
    return authority.sign(pair, request, use=use, name="h1", addresses=("192.0.2.1",), now=now)


def test_names_and_addresses_are_what_the_signer_says(pair: Pair) -> None:
    """Of a request only the key is believed."""
    seen = authority.read(signed(pair, authority.make_key()))
    assert seen.names == ("h1", "localhost", "192.0.2.1", "127.0.0.1")
    assert "ozymandias-host" in seen.subject and "whatever" not in seen.subject
    client = authority.read(signed(pair, authority.make_key(), use="client"))
    assert client.names == ("h1",) and "ozymandias-client" in client.subject


def test_a_certificate_is_good_for_a_year_and_a_lagging_clock(pair: Pair) -> None:
    """From an hour ago, and due for renewal when a third of its life is left."""
    seen = authority.read(signed(pair, authority.make_key()))
    assert 3500 < NOW - seen.not_before < 3700
    assert 364 < seen.days_left(NOW) < 366
    assert authority.read(pair.cert).days_left(NOW) > 3600


def test_what_makes_a_certificate_no_good(pair: Pair) -> None:
    """Another key, another authority, another time, or no certificate at all."""
    key, other = authority.make_key(), authority.make_authority("c2", NOW)
    good = signed(pair, key)
    assert authority.problem_of(good, key, pair.cert, NOW) == ""
    assert "another key" in authority.problem_of(good, authority.make_key(), pair.cert, NOW)
    assert "another authority" in authority.problem_of(signed(other, key), key, pair.cert, NOW)
    assert "expired" in authority.problem_of(good, key, pair.cert, NOW + 400 * DAY)
    assert "clock is behind" in authority.problem_of(good, key, pair.cert, NOW - 2 * DAY)
    assert "can't be read" in authority.problem_of("nonsense", key, pair.cert, NOW)


def test_an_authority_of_the_same_name_is_another_one(pair: Pair) -> None:
    """The name proves nothing: the signature is what is checked."""
    key, twin = authority.make_key(), authority.make_authority("c1", NOW)
    assert "another authority" in authority.problem_of(signed(twin, key), key, pair.cert, NOW)
    assert authority.fingerprint(twin.cert) != authority.fingerprint(pair.cert)
    assert len(authority.fingerprint(pair.cert)) == 43


@pytest.mark.parametrize("request_", ["", "nonsense", "x" * 20_000])
def test_bad_requests_are_refused(pair: Pair, request_: str) -> None:
    """What is no request, or far too long, raises a ValueError and nothing else."""
    with pytest.raises(ValueError):
        authority.sign(pair, request_, use="host", name="h1", addresses=(), now=NOW)
