"""What would be: `ozy what-if`, and how futures are drawn here and by `ozy plan`."""

import sys

import click

from ozymandias.cli.client import Document, connect
from ozymandias.cli.options import cluster_options
from ozymandias.cli.render import (
    DIM,
    GREEN,
    RED,
    YELLOW,
    clean,
    job_name,
    named,
    paint,
    print_table,
    sentence,
    show,
)
from ozymandias.model.units import counted

WORK_SECONDS = 120.0  # many losses of many nodes take their time
CHANGES_SHOWN_MAX = 40
NAMES_SHOWN_MAX = 8
_COLOURS = {"survives": GREEN, "lacks": YELLOW, "degrades": YELLOW, "waits": RED}


@click.command("what-if")
@click.argument("steps", nargs=-1, required=True, metavar="STEPS")
@cluster_options
def what_if(steps: tuple[str, ...]) -> None:
    """Show what would become of the cluster; nothing is changed.

    STEPS are separated by semicolons (put them in quotes), and each is played by the scheduler on
    top of the one before until the cluster rests: lose NODE..., add NODE MEMORY [DISK]
    [LABEL=VALUE...], start NODE, cordon NODE, uncordon NODE, drain NODE, undrain NODE, scale JOB
    INSTANCES, stop JOB.

    Of each job it says whether it survives with all that it wants, degrades (more are missing than
    before), lacks some as it did before, or waits, with none at all.

    \b
    Examples:
      ozy what-if "lose n2"
      ozy what-if "lose n2; add n4 16G zone=b; scale web 12"
      ozy what-if "drain n1" -o json | jq .survives
    """
    found = connect().post("what-if", body={"steps": " ".join(steps)}, timeout=WORK_SECONDS)
    show(found, draw_outcome)


def draw_outcome(found: Document) -> None:
    if found.get("first"):
        print("What is under way or due already comes first:")
        _draw_changes(found["first"])
    for step in found["steps"]:
        _draw_step(step)
    _draw_later(found)
    print()
    draw_fates(found["jobs"])
    if found["waiting"]:
        print()
        for row in found["waiting"]:
            count = counted(row["count"], "instance")
            print(f"{count} of {job_name(row)} would wait: {row['reason']}")
    print()
    if not found["at_rest"]:
        print(paint("It did not come to rest; this is how far it was played.", YELLOW))
    elif found["survives"]:
        refused = any(step["problem"] for step in found["steps"])
        left_out = "; what was refused is left out" if refused else ""
        print(paint(f"No job would be worse off{left_out}.", YELLOW if refused else GREEN))
    else:
        worse = [job_name(row) for row in found["jobs"] if row["waiting"]]
        which = f" ({', '.join(worse)})" if worse else ""
        print(paint(f"Not everything would have a place{which}.", RED))


def _draw_step(step: Document) -> None:
    print(f"{step['step']}:")
    if step["problem"]:
        print(paint("  ! ", RED) + f"refused: {clean(step['problem']['detail'])}")
    if forced := step.get("forced"):  # an earlier daemon does not tell
        print(paint("  ! ", YELLOW) + f"needs --force: {clean(forced['detail'])}")
    _draw_changes(step["changes"])
    if not step["changes"] and not step["problem"]:
        print("    nothing moves")
    for fate in step["hurt"]:
        print(paint("  ? ", RED) + f"{_hurt_words(fate)} would wait")


def _draw_later(found: Document) -> None:
    """What the settings of the cluster hold back."""
    if found.get("frozen"):
        print(paint(f"No rollout goes on and no move begins: {clean(found['frozen'])}.", YELLOW))
    if found.get("thawed"):
        print("When that ends:")
        _draw_changes(found["thawed"])
    if not found.get("with_moves", True):
        print(paint("Moves for a better layout are left out: the cluster is large.", DIM))
    if found.get("suggested"):
        print(
            f"Only suggested, for the setting `rebalance` is {found['rebalance']}:"
            " `ozy rebalance` would then move"
        )
        _draw_changes(found["suggested"])


def draw_followed(found: Document) -> None:
    """What comes of a change beside the job's own steps; an earlier daemon does not tell."""
    if found.get("others"):
        print("Meanwhile, of other jobs:")
        _draw_changes(found["others"])
    if found.get("missing"):
        print(paint(f"In the end {counted(found['missing'], 'instance')} would wait.", RED))
    if found.get("outdated"):
        count = counted(found["outdated"], "instance")
        print(paint(f"In the end {count} would not be replaced.", RED))
    for fate in found.get("hurt", ()):
        print(paint(f"In the end {_hurt_words(fate)} would wait.", RED))
    if found.get("others_left_out"):
        why = clean(found["others_left_out"])
        print(paint(f"From then on what others do is left out: {why}.", DIM))


def draw_notes(plan: Document, *, is_aside: bool = False) -> None:
    """What of the job file changes nothing; an earlier daemon does not tell. Aside is on stderr."""
    stream = sys.stderr if is_aside else sys.stdout
    for note in plan.get("notes", ()):
        print(f"  {paint('note', YELLOW, stream)}: {clean(note)}", file=stream, flush=True)


def _draw_changes(changes: list[Document]) -> None:
    for change in changes[:CHANGES_SHOWN_MAX]:
        draw_change(change)
    if (more := len(changes) - CHANGES_SHOWN_MAX) > 0:
        print(f"    and {more} more")


def draw_change(change: Document) -> None:
    name, reason = named(change), clean(change["reason"])
    if not change["from"]:
        print(paint("  + ", GREEN) + f"{name} on {change['to']}: {reason}")
    elif not change["to"]:
        print(paint("  - ", RED) + f"{name} on {change['from']}: {reason}")
    else:
        print(paint("  > ", YELLOW) + f"{name} {change['from']} -> {change['to']}: {reason}")


def draw_fates(rows: list[Document]) -> None:
    cells = [
        (
            job_name(row),
            row["outcome"],
            f"{row['before']} -> {row['after']}",
            row["wanted"],
            row["priority"],
            _who(_waiting(row), row["wanted"] - row["after"]),
        )
        for row in rows
    ]
    header = ("JOB", "OUTCOME", "LIVE", "WANTED", "PRIORITY", "WITHOUT A PLACE")
    print_table(header, cells, empty="No jobs.", state=1, colour=lambda s: _COLOURS.get(s, ""))


def _hurt_words(fate: Document) -> str:
    lost = _waiting(fate)
    return _who(lost, len(lost)) or f"{fate['wanted'] - fate['after']} of {job_name(fate)}"


def _waiting(fate: Document) -> list[str]:
    return [named(fate, name) for name in fate["waiting"]]


def _who(names: list[str], count: int) -> str:
    """So many instances, of which these lose their place; the others had none before either."""
    if not names:
        return counted(count, "instance") if count > 0 else ""
    shown = names[:NAMES_SHOWN_MAX]
    more = max(count, len(names)) - len(shown)
    return ", ".join(shown) + (f" and {more} more" if more else "")


def draw_survival(found: Document) -> None:
    """The sentence, and the jobs that the worst loss would hurt."""
    colour = {True: GREEN, False: RED, None: YELLOW}[found["survives"]]
    print(paint(sentence(found["text"]), colour))
    if found["worst"]:
        draw_fates(found["worst"]["hurt"])
