"""Contexts: which cluster is asked, and a file that a crash or a hand can't break for good."""

import json
import stat
from pathlib import Path

import pytest

from ozymandias.cli import context as contexts
from ozymandias.cli.main import run
from ozymandias.problems import ProblemError


@pytest.fixture(autouse=True)
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name in ("OZY_API", "OZY_TOKEN"):
        monkeypatch.delenv(name, raising=False)
    found = tmp_path / "deep" / "context.json"
    monkeypatch.setenv("OZY_CONTEXT", str(found))
    return found


def one(name: str) -> contexts.Context:
    return contexts.Context(
        name=name, endpoints=(f"http://{name}:1",), token="secret", ingress="http://i:8080"
    )


def test_what_is_put_is_loaded(file: Path) -> None:
    """A context comes back as it was, and its file is for its owner alone."""
    contexts.put(one("local"))
    found = contexts.load()
    assert (found.name, found.endpoints, found.token) == ("local", ("http://local:1",), "secret")
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert [p.name for p in file.parent.iterdir()] == ["context.json"]


def test_removing_the_current_context_chooses_another() -> None:
    """The last one removed leaves none; removing twice is fine."""
    contexts.put(one("a"))
    contexts.put(one("b"))
    contexts.remove("b")
    assert contexts.load().name == "a"
    contexts.remove("a")
    contexts.remove("a")
    with pytest.raises(ProblemError) as caught:
        contexts.load()
    assert caught.value.problem.kind.slug == "no-context"


def test_the_environment_overrides(monkeypatch: pytest.MonkeyPatch) -> None:
    """$OZY_API and $OZY_TOKEN need no file."""
    monkeypatch.setenv("OZY_API", "http://a:1/, unix:///x.sock")
    monkeypatch.setenv("OZY_TOKEN", "t")
    found = contexts.load()
    assert (found.endpoints, found.token) == (("http://a:1", "unix:///x.sock"), "t")


@pytest.mark.parametrize("text", ["", "[]", "{", '{"contexts": {"a": 1}}', "\x00"])
def test_a_broken_file_is_a_problem_that_names_it(file: Path, text: str) -> None:
    """Never a traceback."""
    file.parent.mkdir()
    file.write_text(text)
    with pytest.raises(ProblemError) as caught:
        contexts.load()
    assert str(file) in caught.value.problem.detail


def test_the_commands(capsys: pytest.CaptureFixture[str]) -> None:
    """list, use and show; the token is never printed."""
    contexts.put(one("a"))
    contexts.put(one("b"))
    assert run(["context", "use", "a"]) == 0
    assert run(["context", "list", "-o", "json"]) == 0
    assert run(["context", "show"]) == 0
    assert run(["context"]) == 0
    out = capsys.readouterr().out
    assert '"name": "a",\n    "current": true' in out
    assert "secret" not in out
    assert run(["context", "use", "c"]) == 6
    assert "It has a, b." in capsys.readouterr().err


def test_no_cluster_is_chosen(capsys: pytest.CaptureFixture[str]) -> None:
    """Without any context the problem says how to get one, and exits with 6."""
    assert run(["ps", "-o", "json"]) == 6
    document = json.loads(capsys.readouterr().out)
    assert document["type"].endswith("#no-context")
    assert "ozy up" in document["hint"]
