"""The pages that are made from the route table, and the parts that need no daemon."""

import json
from pathlib import Path

import pytest

from ozymandias.api.audit import Audit
from ozymandias.api.limits import BUCKETS_MAX, Buckets, Rate
from ozymandias.api.manual import pages
from ozymandias.store.tokens import hashed, make_token, parse_tokens

DOCS = Path(__file__).resolve().parents[3] / "docs"


@pytest.mark.parametrize("name", sorted(pages()))
def test_the_pages_are_up_to_date(name: str) -> None:
    """`python -m ozymandias.api.manual docs` would change nothing."""
    assert (DOCS / name).read_text() == pages()[name]


def test_a_bucket_fills_again() -> None:
    """A burst, then so many per second; the wait that is told is the wait that is needed."""
    now = 0.0
    buckets = Buckets(Rate(per_second=2, burst=3), now=lambda: now)
    for _ in range(3):
        assert buckets.wait_seconds("a") == 0
        buckets.take("a")
    assert buckets.wait_seconds("a") == 1
    assert buckets.wait_seconds("b") == 0
    now = 1.0
    assert buckets.wait_seconds("a") == 0


def test_buckets_do_not_grow_for_ever() -> None:
    """A million addresses cost no more memory than a few thousand."""
    buckets = Buckets(Rate(per_second=1, burst=2), now=lambda: 0.0)
    for number in range(3 * BUCKETS_MAX):
        buckets.take(f"address-{number}")
    assert len(buckets._buckets) <= BUCKETS_MAX


def test_no_rate_is_no_limit() -> None:
    """0 per second switches the limit off."""
    buckets = Buckets(Rate(per_second=0, burst=0))
    for _ in range(1000):
        buckets.take("a")
    assert buckets.wait_seconds("a") == 0


def test_the_audit_is_bounded(tmp_path: Path) -> None:
    """A full file is put aside once; two files of the size are the most there is."""
    file = tmp_path / "audit.log"
    audit = Audit(file, bytes_max=1000)
    for number in range(100):
        audit.write({"number": number, "what": "job.scale"})
    kept = sorted(tmp_path.iterdir())
    assert [path.name for path in kept] == ["audit.log", "audit.log.1"]
    assert all(path.stat().st_size <= 1000 for path in kept)
    assert file.stat().st_mode & 0o777 == 0o600
    lines = [line for path in reversed(kept) for line in path.read_text().splitlines()]
    numbers = [json.loads(line)["number"] for line in lines]
    assert numbers == list(range(numbers[0], 100))


def test_an_audit_that_cannot_be_written_stops_nothing(tmp_path: Path) -> None:
    """A missing directory, or a link planted in its place, is warned of."""
    Audit(tmp_path / "absent" / "audit.log").write({"what": "job.stop"})
    target = tmp_path / "target"
    target.write_text("")
    (tmp_path / "audit.log").symlink_to(target)
    Audit(tmp_path / "audit.log").write({"what": "job.stop"})
    assert target.read_text() == ""


def test_files_of_tokens() -> None:
    """Hashed lines, bare tokens, comments; anything else names its line."""
    token = make_token()
    text = f"# mine\n\n{hashed(token)}\nold sha256:{'0' * 64}\na-token-written-by-hand\n"
    found = parse_tokens(text)
    assert [t.id for t in found][:2] == [token.split("-")[1], "old"]
    assert found[0].digest == hashed(token).digest
    assert found[2].digest == hashed("a-token-written-by-hand").digest
    for bad in ("short", "an id sha256:xyz", "two words that are long enough"):
        with pytest.raises(ValueError, match="line 1"):
            parse_tokens(bad)
