"""`ozy replay`: the state of a cluster as a file, and the same scheduler over it."""

import sys
from pathlib import Path

import click

from ozymandias.cli.client import Document, connect
from ozymandias.cli.options import cluster_options
from ozymandias.cli.render import GREEN, RED, YELLOW, clean, paint, plural, show

EXPORT_SECONDS = 120.0
STEPS_SHOWN_MAX = 40


@click.command()
@click.argument("file", type=click.Path(allow_dash=True))
@click.option("--export", "is_export", is_flag=True, help="Write the cluster's state to FILE.")
@click.option(
    "--with-environment",
    is_flag=True,
    help="Export the values of environment variables too; they are left out otherwise.",
)
@click.option(
    "--decision",
    default="",
    metavar="ID",
    help="Export what a recorded decision was made on; `ozy why INSTANCE` names it.",
)
@cluster_options
def replay(file: str, is_export: bool, with_environment: bool, decision: str) -> int:
    """Run the scheduler over the state in a file, or write that file.

    Without --export no cluster is needed: the plan is made anew from FILE and held against the one
    that was made where the file was written. Exit code 1 when it is another one. FILE may be - for
    standard input or output.

    \b
    Examples:
      ozy replay --export state.json
      ozy replay state.json
      ozy replay state.json -o json | jq .plan
    """
    if is_export:
        return _export(file, with_environment, decision)
    if with_environment or decision:
        raise click.UsageError("--with-environment and --decision are for --export.")
    return _replay(_read(file))


def _export(file: str, with_environment: bool, decision: str) -> int:
    chosen = {"environment": with_environment, "decision": decision}
    data = connect().raw("replay", timeout=EXPORT_SECONDS, **chosen)
    if file == "-":
        sys.stdout.buffer.write(data)
        sys.stdout.buffer.flush()
        return 0
    try:
        Path(file).write_bytes(data)
    except OSError as error:
        raise click.UsageError(f"{file}: {error.strerror or error}") from None
    print(f"{file}: {plural(len(data), 'byte')}. `ozy replay {file}` runs the scheduler over it.")
    return 0


def _read(file: str) -> bytes:
    from ozymandias.store.replay import BYTES_MAX

    try:
        if file == "-":
            return sys.stdin.buffer.read(BYTES_MAX)
        with Path(file).open("rb") as opened:
            return opened.read(BYTES_MAX)
    except OSError as error:
        raise click.UsageError(f"{file}: {error.strerror or error}") from None


def _replay(data: bytes) -> int:
    from ozymandias import __version__
    from ozymandias.store.replay import canonical, load, replayed

    recorded = load(data)
    plan = replayed(recorded)
    same = canonical(plan) == canonical(recorded.plan)
    document = {
        "same": same,
        "version": __version__,
        "made_by": recorded.made_by,
        "plan": plan,
        "recorded": recorded.plan,
    }
    show(document, _draw)
    return 0 if same else 1


def _draw(found: Document) -> None:
    if found["plan"] is None:
        print("There is nothing to do.")
    elif isinstance(found["plan"], list):
        from ozymandias.cli.why import draw_verdicts

        for placed in found["plan"]:
            print(f"{placed['instance']} on {placed['node']}: {clean(placed['reason'])}")
            draw_verdicts(placed["nodes"])
    else:
        plan = found["plan"]["plan"]
        print(f"{found['plan']['what']}: {clean(plan['reason'])}")
        for edit in plan["edits"][:STEPS_SHOWN_MAX]:
            _draw_edit(edit)
        if (more := len(plan["edits"]) - STEPS_SHOWN_MAX) > 0:
            print(f"    and {more} more")
        for row in plan["pending"]:
            print(paint("  ? ", YELLOW) + f"{row['count']} of {row['job'][1]}: {row['reason']}")
    if found["same"]:
        print("The same plan as where the file was written.")
        return
    made, version = found["made_by"], found["version"]
    by = "the same version" if made == version else f"version {made}, and this is {version}"
    print(
        f"This is not the plan that was made where the file was written (by {by})."
        " `-o json` shows both, as plan and recorded.",
        file=sys.stderr,
    )


def _draw_edit(edit: Document) -> None:
    namespace, job = edit["job"]
    name = "" if namespace == "default" else f"{namespace}/"
    reason = f"{name}{job}-{edit['slot']} on {edit['node']}: {clean(edit['reason'])}"
    if edit["before"] is None:
        print(paint("  + ", GREEN) + reason)
    elif edit["after"] in (None, "stopping"):
        print(paint("  - ", RED) + reason)
    else:
        print(paint("  > ", YELLOW) + reason)
