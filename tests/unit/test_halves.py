"""Suites in two halves: nothing is left out and nothing runs twice."""

from pathlib import Path

from tests.halves import SECONDS, divided

ROOT = Path(__file__).resolve().parents[2]


def test_every_file_is_in_one_half() -> None:
    """However many tests there are of each, and the same way whatever the order."""
    files = [*SECONDS, *(f"tests/other/test_{n}.py" for n in range(20) for _ in range(n + 1))]
    first, second = divided(files)
    assert first | second == set(files) and not first & second
    assert divided(reversed(files)) == (first, second)


def test_the_halves_take_equally_long() -> None:
    """By the table, apart from the last file."""
    for suite in ("tests/cluster", "tests/integration"):
        files = [file for file in SECONDS if file.startswith(suite)]
        one, other = (sum(SECONDS[file] for file in half) for half in divided(files))
        assert abs(one - other) <= max(SECONDS[file] for file in files) / 2


def test_files_of_the_table_exist() -> None:
    """A file that is renamed takes its time along."""
    assert [file for file in SECONDS if not (ROOT / file).is_file()] == []
