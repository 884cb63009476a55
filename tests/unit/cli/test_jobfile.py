"""`ozy validate` and `ozy schema`: offline, and the same parser as the server's."""

import io
import json
from pathlib import Path

import jsonschema
import pytest
import yaml

from ozymandias.cli.main import run

GOOD = "name: web\ncontainers: {app: {image: demo}}\n"
BAD = "name: Web!\nnumInstances: -1\ncontainers: {app: {imaje: demo}}\n"


@pytest.fixture
def files(tmp_path: Path) -> tuple[str, str]:
    good, bad = tmp_path / "good.yaml", tmp_path / "bad.yaml"
    good.write_text(GOOD)
    bad.write_text(BAD)
    return str(good), str(bad)


def test_good_and_bad(files: tuple[str, str], capsys: pytest.CaptureFixture[str]) -> None:
    """Every file is checked; one bad one makes the exit code 2."""
    assert run(["validate", *files]) == 2
    captured = capsys.readouterr()
    assert f"{files[0]}: valid (job web)" in captured.out
    assert f"{files[1]}:2:" in captured.err
    assert f"{files[1]}:3:" in captured.err


def test_as_json(files: tuple[str, str], capsys: pytest.CaptureFixture[str]) -> None:
    """One bad file is its problem document; several files are an array."""
    assert run(["validate", files[1], "-o", "json"]) == 2
    assert len(json.loads(capsys.readouterr().out)["errors"]) >= 3
    assert run(["validate", *files, "-o", "json"]) == 2
    good, bad = json.loads(capsys.readouterr().out)
    assert good["valid"] is True
    assert bad["title"] == "Job file is not valid"


def test_standard_input(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """- reads standard input."""
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(GOOD.encode())))
    assert run(["validate", "-"]) == 0
    assert "<stdin>: valid" in capsys.readouterr().out


@pytest.mark.parametrize("name", ["missing.yaml", "."])
def test_a_file_that_cant_be_read(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Exit code 2 and the reason, for a missing file and for a directory."""
    assert run(["validate", name]) == 2
    assert name in capsys.readouterr().err


def test_schema_describes_a_job(capsys: pytest.CaptureFixture[str]) -> None:
    """The printed schema accepts a good job file and refuses a bad one."""
    assert run(["schema"]) == 0
    schema = json.loads(capsys.readouterr().out)
    validator = jsonschema.Draft202012Validator(schema)
    assert validator.is_valid(yaml.safe_load(GOOD))
    assert not validator.is_valid(yaml.safe_load(BAD))
