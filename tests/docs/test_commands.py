"""Every command printed in the README and in the tutorial, run in order on a real cluster.

Each page has a home, a context and a state directory of its own, and everything that it made is
gone in the end, whatever happened. What a page shows of the output is held against what came,
line by line, apart from times, addresses, ids and nodes.
"""

import json
import os
import re
import secrets
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.docs.pages import ROOT, Command, FileToWrite, missing_lines, steps

COMMAND_SECONDS_MAX = 120
CLONE = "git clone https://github.com/barrucadu/ozymandias"

# What is run in place of a command, and why.
SUBSTITUTES = {
    CLONE: ('ln -s "$DOCS_ROOT" ozymandias', "this checkout stands for the clone"),
    "make setup": ("grep -q ^setup: Makefile", "has been done, or this would not run"),
    "make test": ("grep -q ^test: Makefile", "this is a part of it"),
    "make demo": ("python -m ozymandias.cluster.demo", "the same without setup"),
    "sleep 10": (
        "until ozy nodes | grep -q lost && ozy status my-site | grep -q '6 of 6'\n"
        "do sleep 0.2; done",
        "as long as it takes on this machine",
    ),
    "ozy up": ('ozy up --state-dir "$DOCS_STATE"', "a state directory of its own"),
}
# Inside of a checkout a reader may write; the tests' checkout is not theirs.
MOVES = {"mkdir my-site": 'mkdir "$HOME/my-site"', "cd my-site": 'cd "$HOME/my-site"'}

pytestmark = pytest.mark.timeout(240)


class Reader:
    """Types a page's commands; each in a shell that goes on where the last one ended."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.home = directory / "home"
        self.home.mkdir()
        self.memory = directory / "shell"
        self.memory.write_text(f"cd {self.home}\n")
        self.tag = f"localhost/my-site-{secrets.token_hex(4)}"
        kept = {k: v for k, v in os.environ.items() if not k.startswith(("OZY_", "XDG_", "VIRT"))}
        self.environment = kept | {
            "HOME": str(self.home),
            "OZY_CONTEXT": str(directory / "context.json"),
            "TMPDIR": str(directory),
            "DOCS_ROOT": str(ROOT),
            "DOCS_STATE": str(directory / "state"),
            "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
            "NO_COLOR": "1",
            "COLUMNS": "200",
        }

    def read(self, page: Path) -> None:
        for step in steps(page):
            if isinstance(step, FileToWrite):
                self.write(step)
            else:
                self.type(step)

    def write(self, step: FileToWrite) -> None:
        where = Path(self.shell("pwd").stdout.strip())
        assert where.is_relative_to(self.home), f"{step.where}: would be written to {where}"
        (where / step.name).write_text(self.adapted(step.text))

    def type(self, command: Command) -> None:
        text, _ = SUBSTITUTES.get(command.text, (MOVES.get(command.text, command.text), ""))
        done = self.shell(self.adapted(text))
        printed = done.stdout.replace(self.tag, "localhost/my-site")
        assert done.returncode == 0, f"{command.where}: {command.text}\n{printed}"
        missing = missing_lines(command.expected, printed)
        assert not missing, f"{command.where}: {command.text}\n{missing}\nnot in\n{printed}"

    def adapted(self, text: str) -> str:
        """Images of its own, and the port that the ingress really has."""
        text = text.replace("localhost/my-site", self.tag)
        text = re.sub(r"my-site:(\d)", f"{self.tag.removeprefix('localhost/')}:\\1", text)
        return re.sub(r"localhost:8080", f"localhost:{self.ingress_port()}", text)

    def ingress_port(self) -> int:
        file = self.directory / "state" / "cluster.json"
        return int(json.loads(file.read_text())["ingress_port"]) if file.exists() else 8080

    def shell(self, text: str) -> subprocess.CompletedProcess[str]:
        memory = self.memory
        script = f"source {memory}\n{text}\ncode=$?\nexport -p >{memory}\n"
        script += f'printf "cd %q\\n" "$PWD" >>{memory}\nexit $code\n'
        with subprocess.Popen(
            ["bash", "-c", script],
            env=self.environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        ) as process:
            try:
                out, _ = process.communicate(timeout=COMMAND_SECONDS_MAX)
            except BaseException:
                os.killpg(process.pid, signal.SIGINT)  # it removes what it made, as for a reader
                process.communicate(timeout=COMMAND_SECONDS_MAX)
                raise
        return subprocess.CompletedProcess(process.args, process.returncode, out)

    def clean_up(self) -> None:
        if (self.directory / "state").exists():
            self.shell('ozy down --state-dir "$DOCS_STATE"')
        listed = self.shell(f"podman images --quiet {self.tag}").stdout.split()
        if listed:
            self.shell(f"podman rmi --force {' '.join(sorted(set(listed)))}")


@pytest.fixture
def reader() -> Iterator[Reader]:
    with tempfile.TemporaryDirectory(prefix="ozy-docs-") as directory:
        made = Reader(Path(directory))
        try:
            yield made
        finally:
            made.clean_up()
        left = {"home", "shell", "context.json"}
        assert {path.name for path in Path(directory).iterdir()} <= left


def test_the_readme_does_what_it_says(reader: Reader) -> None:
    """Its commands succeed in the order printed, and print what it shows."""
    reader.read(ROOT / "README.md")


def test_the_tutorial_does_what_it_says(reader: Reader) -> None:
    """From the clone to a served, changed, scaled, healed and removed job, as printed."""
    reader.read(ROOT / "docs" / "tutorial.md")


def test_every_substitute_is_still_needed() -> None:
    """A command that no page prints any more has no substitute."""
    printed = {
        step.text
        for page in (ROOT / "README.md", ROOT / "docs" / "tutorial.md")
        for step in steps(page)
        if isinstance(step, Command)
    }
    assert (SUBSTITUTES.keys() | MOVES.keys()) <= printed
