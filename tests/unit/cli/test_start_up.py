"""Starting up is a feature: what `ozy --help` and `ozy ps` may load. `make bench` has the times."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from ozymandias.cli import local
from ozymandias.cluster import state

HEAVY = (
    *("aiohttp", "pydantic", "rich", "structlog", "yaml", "asyncio", "msgspec", "grpc"),
    *("http.client", "email", "ssl", "prometheus_client", "ozymandias.store", "ozymandias.core"),
)


def loaded_by(*arguments: str, environment: dict[str, str] | None = None) -> set[str]:
    """The modules in memory after a run of `ozy`."""
    program = (
        "import sys, json, io, contextlib\n"
        "from ozymandias.cli.main import run\n"
        "said = io.StringIO()\n"
        "with contextlib.redirect_stdout(said), contextlib.redirect_stderr(said):\n"
        f"    run({list(arguments)!r})\n"
        "print(json.dumps(sorted(sys.modules)))\n"
    )
    ran = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True, env=environment
    )
    return set(json.loads(ran.stdout))


def test_help_loads_nothing_heavy() -> None:
    """`ozy --help` needs click and a table."""
    loaded = loaded_by("--help")
    assert not loaded & set(HEAVY)
    assert not {name for name in loaded if name.startswith("ozymandias.cli.")} - {
        "ozymandias.cli.main",
        "ozymandias.cli.options",
    }


def test_ps_loads_nothing_heavy(tmp_path: Path) -> None:
    """A command that asks one question loads no HTTP library, no e-mail parser, no YAML."""
    environment = {"OZY_CONTEXT": str(tmp_path / "none.json"), "PATH": ""}
    assert not loaded_by("ps", environment=environment) & set(HEAVY)


@pytest.mark.parametrize("command", ["submit", "status", "logs", "node", "context", "completion"])
def test_a_commands_help_loads_nothing_heavy(command: str) -> None:
    """Help of any command comes without the libraries that the command may need."""
    assert not loaded_by(command, "--help") & set(HEAVY)


def test_a_press_of_the_tab_key_behind_node_loads_nothing_heavy() -> None:
    """Completing a node's name does not load what makes clusters."""
    loaded = loaded_by("node", "kill", "--help")
    assert not loaded & {*HEAVY, "ozymandias.cluster", "subprocess", "secrets"}


def test_the_usual_state_directory_is_the_one_that_is_told() -> None:
    """The command line knows it without loading what keeps the state."""
    assert Path(local.DEFAULT_STATE_DIR) == state.DEFAULT_STATE_DIR
