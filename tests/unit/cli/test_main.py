"""The command tree: every command has help, and every failure has a shape and an exit code."""

import importlib
import json
import os
import subprocess
import sys

import click
import pytest

from ozymandias import __version__
from ozymandias.cli.main import SECTIONS, cli, output_of, run

NAMES = [name for _, entries in SECTIONS for name, *_ in entries]


@pytest.mark.parametrize("name", NAMES)
def test_every_command_has_help_and_an_output_option(name: str) -> None:
    """The command's own help begins with the table's line, and -o is understood."""
    entry = next(e for _, entries in SECTIONS for e in entries if e[0] == name)
    command = getattr(importlib.import_module(f"ozymandias.cli.{entry[1]}"), entry[2])
    assert isinstance(command, click.Command)
    assert command.name == name
    assert (command.help or "").startswith(entry[3].rstrip("."))
    if not isinstance(command, click.Group):
        assert any("-o" in p.opts for p in command.params), f"{name} has no -o"


def test_the_commands_are_those_that_were_promised() -> None:
    """No command is missing."""
    promised = (
        "up down submit plan validate schema scale stop restart ps status jobs nodes logs exec"
        " events why what-if doctor install context completion version node cluster settings freeze"
        " replay why-not pools shed drift rebalance token"
    )
    assert sorted(NAMES) == sorted(promised.split())


def test_an_unknown_command_is_told_what_was_meant(capsys: pytest.CaptureFixture[str]) -> None:
    """A slip of the finger gets the nearest names and exit code 2."""
    assert run(["sumbit", "x.yaml"]) == 2
    assert "Did you mean submit" in capsys.readouterr().err


def test_the_version_is_told_by_an_option_too(capsys: pytest.CaptureFixture[str]) -> None:
    """Without asking a cluster: it is what people try first."""
    assert run(["--version"]) == 0
    assert capsys.readouterr().out == f"ozy {__version__}\n"


def test_bad_usage_as_json_is_a_problem_document(capsys: pytest.CaptureFixture[str]) -> None:
    """With -o json even a usage error is a document on stdout, and stderr stays empty."""
    assert run(["-o", "json", "scale", "web", "many"]) == 2
    captured = capsys.readouterr()
    assert json.loads(captured.out)["type"].endswith("#invalid-request")
    assert captured.err == ""


@pytest.mark.parametrize(
    ("arguments", "output"),
    [
        (["ps"], "table"),
        (["ps", "-o", "json"], "json"),
        (["-o", "yaml", "ps"], "yaml"),
        (["ps", "-ojson"], "json"),
        (["ps", "--output=yaml"], "yaml"),
        (["ps", "-o", "json", "-o", "table"], "table"),
        (["exec", "web-0", "--", "cc", "-o", "json"], "table"),
        (["ps", "-o", "nonsense"], "table"),
        (["ps", "-o"], "table"),
    ],
)
def test_the_output_is_known_even_when_arguments_are_not_understood(
    arguments: list[str], output: str
) -> None:
    """The last -o before -- counts."""
    assert output_of(arguments) == output


@pytest.mark.parametrize("command", ["schema", "version", "--help"])
def test_a_reader_that_has_seen_enough_is_no_error(command: str) -> None:
    """`ozy schema | head -1` ends quietly, in the middle of printing or at its end."""
    reading, writing = os.pipe()
    os.close(reading)
    ran = subprocess.run(
        [sys.executable, "-m", "ozymandias.cli", command], stdout=writing, stderr=subprocess.PIPE
    )
    os.close(writing)
    assert (ran.returncode, ran.stderr) == (0, b"")


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_prints_a_script(shell: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Each shell gets a script that names ozy."""
    assert run(["completion", shell]) == 0
    assert "_OZY_COMPLETE" in capsys.readouterr().out


def test_commands_are_completed_without_importing_them() -> None:
    """Completion of a command's name comes from the table."""
    found = cli.shell_complete(click.Context(cli), "st")
    assert [item.value for item in found] == ["stop", "status"]
