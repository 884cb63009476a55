"""`ozy replay`: the state of a cluster as a file, and the same scheduler over it."""

import sys
from pathlib import Path

import click

from ozymandias.cli.client import Document, connect
from ozymandias.cli.options import cluster_options
from ozymandias.cli.render import DIM, GREEN, RED, YELLOW, clean, named, paint, show
from ozymandias.model.units import counted

EXPORT_SECONDS = 120.0
STEPS_SHOWN_MAX = 40
NAMED_MAX = 5
WITH_LEISURE = 2  # the format from which on files know what can wait


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
    that was made where the file was written, and a recorded decision against what was decided. Exit
    code 1 when it is another one. FILE may be - for standard input or output.

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
    print(f"{file}: {counted(len(data), 'byte')}. `ozy replay {file}` runs the scheduler over it.")
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
    from ozymandias.store.replay import is_same, load, replayed

    recorded = load(data)
    plan = replayed(recorded)
    same = is_same(recorded, plan)
    document = {
        "same": same,
        "version": __version__,
        "made_by": recorded.made_by,
        "format": recorded.version,
        "plan": plan,
        "recorded": recorded.plan,
    }
    show(document, _draw_decision if recorded.decision else _draw)
    return 0 if same else 1


def _draw(found: Document) -> None:
    if found["plan"] is None:
        print("There is nothing to do.")
    else:
        if words := _when(found["plan"]):
            print(words)
        _draw_plan(found["plan"]["what"], found["plan"]["plan"])
    if found["format"] < WITH_LEISURE:
        print(paint("The file is of an older format, without what can wait: moves.", DIM))
    if found["same"]:
        print("The same plan as where the file was written.")
    else:
        print(
            f"This is not the plan that was made where the file was written (by {_made_by(found)})."
            " `-o json` shows both, as plan and recorded.",
            file=sys.stderr,
        )


def _when(plan: Document) -> str:
    """What comes before a plan that is not for now."""
    if plan.get("when") == "settled":
        steady = f"have been there and healthy for {plan['steady_seconds']:g} s"
        return f"There is nothing to do at once. When all {steady}:"
    if plan.get("when") == "thawed":
        return f"There is nothing to do now: {clean(plan['frozen'])}. When that ends:"
    if plan.get("when") == "asked":
        return (
            "There is nothing to do. Only suggested, for the setting `rebalance` is"
            f" {plan['rebalance']}: `ozy rebalance` would begin with"
        )
    return ""


def _draw_plan(what: str, plan: Document) -> None:
    print(f"{what}: {clean(plan['reason'])}")
    for edit in plan["edits"][:STEPS_SHOWN_MAX]:
        _draw_edit(edit)
    if (more := len(plan["edits"]) - STEPS_SHOWN_MAX) > 0:
        print(f"    and {more} more")
    for row in plan["pending"]:
        print(paint("  ? ", YELLOW) + f"{row['count']} of {row['job'][1]}: {row['reason']}")


def _made_by(found: Document) -> str:
    made, version = found["made_by"], found["version"]
    return "the same version" if made == version else f"version {made}, and this is {version}"


def _draw_decision(found: Document) -> None:
    from ozymandias.cli.why import draw_verdicts

    plan = found["plan"]
    for placed in plan["placements"]:
        print(f"{named(placed)} on {placed['node']}: {clean(placed['reason'])}")
        draw_verdicts(placed["nodes"])
        _draw_again(placed, "Decided otherwise", "Not held against what was decided")
    for stopped in plan["stops"]:
        reason = f"{named(stopped)} on {stopped['node']}: {clean(stopped['reason'])}"
        print(paint("  - ", RED) + reason)
        _draw_again(stopped, "Decided otherwise", "Not computed again")
    if plan["left_out"]:
        more = counted(plan["left_out"], "more step")
        print(paint(f"{more} of the decision are not on record: it was a large one.", DIM))
    _draw_sum(found)


def _draw_again(row: Document, other: str, unknown: str) -> None:
    if row["same"] is False:
        print(paint(f"    {other}: {clean(row['why'])}.", RED))
    elif row["same"] is None:
        print(paint(f"    {unknown}: {clean(row['why'])}.", DIM))


def _draw_sum(found: Document) -> None:
    steps = (*found["plan"]["placements"], *found["plan"]["stops"])
    other = [row for row in steps if row["same"] is False]
    unknown = sum(row["same"] is None for row in steps)
    if other:
        names = ", ".join(f"{named(row)} ({row['node']})" for row in other[:NAMED_MAX])
        more = f" and {len(other) - NAMED_MAX} more" if len(other) > NAMED_MAX else ""
        words = f"This is not what was decided (by {_made_by(found)}): {names}{more}."
        print(words, file=sys.stderr)
    elif not found["same"]:
        words = "It comes out as it was decided, but not as where the file was written"
        print(f"{words} (by {_made_by(found)}): `-o json` shows both.", file=sys.stderr)
    elif unknown:
        print(f"As it was decided, but for {counted(unknown, 'step')} of which nobody can tell.")
    else:
        print("The same as was decided.")


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
