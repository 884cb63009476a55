"""How long `ozy` takes to start, against the smallest program that click can make."""

import os
import subprocess
import sys
from pathlib import Path

from bench.figure import by_turns, compared, report

TURNS = 31
EMPTY = "import click\n@click.command()\ndef main():\n    '''Empty.'''\nmain()\n"
OZY = str(Path(sys.executable).with_name("ozy"))


def run(*command: str) -> None:
    environment = os.environ | {"PYTHONDONTWRITEBYTECODE": "1"}
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL, env=environment)


def empty_program(directory: Path) -> str:
    file = directory / "empty.py"
    file.write_text(EMPTY)
    return str(file)


def measure_help(directory: Path) -> None:
    empty = empty_program(directory)
    _warm(empty)
    ratio, how = compared(
        *by_turns(lambda: run(OZY, "--help"), lambda: run(sys.executable, empty, "--help"), TURNS)
    )
    report("ozy --help / empty click program", ratio, "ratio", 1.2, how)


def measure_ps(directory: Path) -> None:
    """With a cluster that answers."""
    empty = empty_program(directory)
    _warm(empty)
    run(OZY, "ps")
    ratio, how = compared(
        *by_turns(lambda: run(OZY, "ps"), lambda: run(sys.executable, empty), TURNS)
    )
    report("ozy ps / empty click program", ratio, "ratio", 1.7, how)


def _warm(empty: str) -> None:
    """Byte code is compiled and files are in memory before anything counts."""
    for _ in range(2):
        subprocess.run([OZY, "--help"], check=True, stdout=subprocess.DEVNULL)
        subprocess.run([sys.executable, empty, "--help"], check=True, stdout=subprocess.DEVNULL)
