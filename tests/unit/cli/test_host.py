"""`ozy install` and the token that it makes."""

import json
from pathlib import Path

import click
import pytest

from ozymandias.cli import host

TOKEN = "ozy-01234567-a-token-that-is-long-enough"


def test_a_new_token_goes_into_the_contexts_and_is_printed_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The file is its owner's alone; a context that is in use stays in use."""
    file = tmp_path / "context.json"
    monkeypatch.setenv("OZY_CONTEXT", str(file))
    for current in ("", "other"):
        if current:
            file.write_text(json.dumps({"current": "other", "contexts": {"other": {}}}))
        with click.Context(host.install):
            host.hand_over(TOKEN)
        found = json.loads(file.read_text())
        (name,) = set(found["contexts"]) - {"other"}
        assert found["contexts"][name]["token"] == TOKEN
        assert found["current"] == (current or name)
        assert capsys.readouterr().out.count(TOKEN) == 1
        assert file.stat().st_mode & 0o777 == 0o600
