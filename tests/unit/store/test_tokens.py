"""Files of API tokens: what a line may be, and which right it gives."""

import pytest

from ozymandias.store.tokens import Right, hashed, make_token, parse_tokens

DIGEST = "0" * 64


@pytest.mark.parametrize("right", Right)
def test_a_line_is_read_as_it_was_written(right: Right) -> None:
    """Id, hash and right."""
    token = hashed(make_token(), right)
    assert parse_tokens(f"{token}\n") == (token,)


@pytest.mark.parametrize(
    ("line", "right"),
    [
        (f"old sha256:{DIGEST}", Right.ADMIN),
        ("a-token-written-by-hand", Right.ADMIN),
        (f"new sha256:{DIGEST} admin", Right.ADMIN),
        (f"  ci  sha256:{DIGEST}\tdeploy  ", Right.DEPLOY),
    ],
)
def test_what_is_without_a_right_is_an_administrators(line: str, right: Right) -> None:
    """So every file that was written before there were rights means what it meant."""
    assert [token.right for token in parse_tokens(line)] == [right]


def test_administrators_lines_are_as_they_were() -> None:
    """A daemon that knows no rights can read them."""
    assert len(str(hashed("a-token-written-by-hand", Right.ADMIN)).split()) == 2


@pytest.mark.parametrize("word", ["root", "Deploy", "deploy admin", "deploy,admin", "admin1"])
def test_a_right_that_there_is_not_is_no_right(word: str) -> None:
    """The line is named, and nothing of the file is believed."""
    with pytest.raises(ValueError, match="line 2"):
        parse_tokens(f"# tokens\nci sha256:{DIGEST} {word}\n")
