"""What commands about a cluster on this machine share: its directory, and how its making is shown.

Loaded with every press of the tab key behind `ozy node`: what does the work (`cluster/local.py`) is
imported by who calls it, and not here.
"""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import click

from ozymandias.cli import context as contexts
from ozymandias.cli.options import settings

if TYPE_CHECKING:
    from pathlib import Path

DEFAULT_STATE_DIR = "/var/lib/ozymandias/local"


def state_dir_option(function: Any) -> Any:
    return click.option(
        "--state-dir",
        type=click.Path(file_okay=False),
        help=f"Where the cluster keeps its state (default: {DEFAULT_STATE_DIR}).",
    )(function)


def local_state_dir(given: str | None) -> "Path":
    """For what only makes sense on a local cluster: another context in use is a problem."""
    from pathlib import Path

    from ozymandias.problems import LOCAL_CLUSTER, ProblemError

    if given is not None:
        return Path(given).absolute()
    chosen = contexts.load(settings().context)
    if not chosen.local_state_dir:
        raise ProblemError(
            LOCAL_CLUSTER(
                f"Context {chosen.name} is not a cluster on this machine made by `ozy up`.",
                hint="`ozy context use` chooses another one; real machines have a power switch.",
            )
        )
    return Path(chosen.local_state_dir)


@contextmanager
def showing_logs() -> Iterator[None]:
    """The end of the log of the program that failed, before the problem itself."""
    from ozymandias.cli.render import clean
    from ozymandias.problems import ProblemError

    try:
        yield
    except ProblemError as error:
        for line in error.problem.fields.get("log", ()):
            progress(f"  {error.problem.fields['program']}: {clean(line)}")
        raise


def progress(text: str) -> None:
    if settings().output == "table":
        print(text, file=sys.stderr)
