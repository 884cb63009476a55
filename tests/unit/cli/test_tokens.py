"""`ozy token create`: what is printed, and what is added to a file."""

import json
from pathlib import Path

import pytest

from ozymandias.cli.main import run
from ozymandias.store.tokens import Right, hashed, parse_tokens


def test_people_are_shown_the_token_and_its_line(capsys: pytest.CaptureFixture[str]) -> None:
    """The token once; the line, by which nobody finds the token, as it belongs into the file."""
    assert run(["token", "create"]) == 0
    first, _, line = capsys.readouterr().out.splitlines()
    token = first.split()[-1]
    assert parse_tokens(line) == (hashed(token, Right.DEPLOY),)
    assert token not in line


@pytest.mark.parametrize("right", Right)
def test_scripts_get_all_of_it(right: Right, capsys: pytest.CaptureFixture[str]) -> None:
    """Every right that there is can be given."""
    assert run(["token", "create", "--right", right.value, "-o", "json"]) == 0
    found = json.loads(capsys.readouterr().out)
    known = hashed(found["token"], right)
    assert found["line"] == str(known) and found["id"] == known.id
    assert (found["right"], found["file"]) == (right, None)


@pytest.mark.parametrize(
    "before", ["", "a-token-written-by-hand", "# by hand\nold-token-of-mine\n"]
)
def test_the_line_is_added_to_the_file(
    before: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """What is there stays, also where the last line has no end; a new file is its owner's alone."""
    file = tmp_path / "tokens"
    if before:
        file.write_text(before)
    assert run(["token", "create", "--file", str(file), "-o", "json"]) == 0
    found = json.loads(capsys.readouterr().out)
    known = parse_tokens(file.read_text())
    assert known == (*parse_tokens(before), hashed(found["token"], Right.DEPLOY))
    assert before or file.stat().st_mode & 0o777 == 0o600


def test_a_file_that_is_none_is_left_alone(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Neither what no daemon could read, nor a link, nor one that can't be there."""
    broken = tmp_path / "broken"
    broken.write_text("what is this\n")
    (tmp_path / "link").symlink_to(tmp_path / "elsewhere")
    for file in (broken, tmp_path / "link", tmp_path / "absent" / "tokens"):
        assert run(["token", "create", "--file", str(file)]) == 2
        shown = capsys.readouterr()
        assert str(file) in shown.err and "ozy-" not in shown.out
    assert broken.read_text() == "what is this\n"
    assert not (tmp_path / "elsewhere").exists()
