"""What jobs do without, and moves that lay the cluster out better."""

import time

import click

from ozymandias.cli.client import Client, Document, connect
from ozymandias.cli.frozen import way_on
from ozymandias.cli.options import (
    context_option,
    output_option,
    override_option,
    settings,
    waiting_options,
)
from ozymandias.cli.render import (
    DIM,
    GREEN,
    YELLOW,
    clean,
    paint,
    print_table,
    sentence,
    show,
    when,
)
from ozymandias.model.units import counted

POLL_SECONDS = 0.5
INSTANCES_TOLD = 3

# What the sums count, for people; smaller is better.
SUMS = (
    ("breach", "requirements that no longer hold"),
    ("away", "instances away from home"),
    ("unmet", "weight of wishes unmet"),
    ("alike", "pairs of a job that share a value of its spread label"),
    ("crowd", "pairs of a job that share a node"),
    ("heat", "heat: points above the target, squared"),
)


@click.command()
@context_option
@output_option
def drift() -> None:
    """List what jobs prefer and do without, and why.

    TO is where an instance could move now to have it; that happens by itself, unless the setting
    `rebalance` is off.

    \b
    Examples:
      ozy drift
      ozy drift -o json | jq '.items[] | select(.to)'
    """
    show(connect().get("drift"), _draw_drift)


def _draw_drift(found: Document) -> None:
    rows = [
        (
            _names(row["instances"]),
            row["node"],
            row["kind"],
            clean(row["wish"]),
            when(row["since"]) if row["since"] else "now",
            row["to"] or "-",
            clean(row["why"]),
        )
        for row in found["items"]
    ]
    header = ("INSTANCE", "NODE", "RULE", "DOES WITHOUT", "SINCE", "TO", "WHY")
    print_table(header, rows, empty="Every job has what it prefers.")
    if found["left_off"]:
        print(paint(f"… and {found['left_off']} more", DIM))
    _draw_notes(found)


def _draw_notes(found: Document) -> None:
    if found["frozen"]:
        print(paint(f"No move begins: {clean(found['frozen'])}.", YELLOW))
    elif found["rebalance"] == "off":
        print(paint("Nothing is moved by itself: the setting `rebalance` is off.", DIM))
    if found.get("suggestion"):
        print(f"Suggested: {found['suggestion']}; `ozy rebalance --dry-run` shows them.")


def _names(instances: list[str]) -> str:
    more = len(instances) - INSTANCES_TOLD
    return ", ".join(instances[:INSTANCES_TOLD]) + (f" +{more}" if more > 0 else "")


@click.command()
@click.option("--dry-run", is_flag=True, help="Show moves and gain, and change nothing.")
@click.option(
    "--max-moves",
    type=click.IntRange(1, 100),
    default=100,
    show_default=True,
    metavar="N",
    help="At most so many.",
)
@click.option("--stop", is_flag=True, help="Let no more moves begin.")
@override_option
@waiting_options
@context_option
@output_option
def rebalance(
    dry_run: bool,
    max_moves: int,
    stop: bool,
    override_freeze: str,
    detach: bool,
    timeout: float,
) -> int:
    """Move instances to where they are better off.

    Each starts elsewhere, and stops here once it is healthy there; of one job never two at a time,
    none below `min_available`. In a freeze window none begins before its end, unless you say why
    these can't wait. What must never run twice, and what has kept volumes, stays. It goes on also
    when nobody waits for it.

    \b
    Examples:
      ozy rebalance --dry-run
      ozy rebalance --max-moves 5
      ozy rebalance --override-freeze "n2 is too hot"
    """
    if override_freeze and (dry_run or stop):
        raise click.UsageError("--override-freeze is for moves: without --dry-run and --stop.")
    client = connect()

    def draw(found: Document) -> None:
        _draw_forecast(found)
        if found["moves"] and found["frozen"] and found["moves_left"]:
            print(way_on(client, "rebalance", "them"))

    if dry_run:
        show(client.get("rebalance", max_moves=max_moves), draw)
        return 0
    body = {"max_moves": 0 if stop else max_moves}
    found = client.post("rebalance", body=body, override_freeze=override_freeze)
    is_table = settings().output == "table"
    if stop or not found["changed"] or detach or found["frozen"]:
        show(found, _draw_stopped if stop else draw)
        return 0
    if is_table:
        draw(found)
    return _wait(client, found, timeout, is_table)


def _wait(client: Client, found: Document, timeout: float, is_table: bool) -> int:
    """Until no move is left or under way; 1 when that takes too long."""
    from ozymandias.cli.main import Interrupted

    until, told = time.monotonic() + timeout, ""
    view = found
    try:
        while (view["moves_left"] or view["under_way"]) and time.monotonic() < until:
            now = ", ".join(f"{m['instance']} to {m['to']}" for m in view["under_way"])
            if is_table and now and now != told:
                told = now
                print(paint(f"moving {now}", DIM), flush=True)
            time.sleep(POLL_SECONDS)
            view = client.get("rebalance")
    except KeyboardInterrupt:
        raise Interrupted("The rebalance goes on; `ozy rebalance --stop` ends it.") from None
    is_done = not (view["moves_left"] or view["under_way"])
    show(found | view, lambda _: _draw_end(view, is_done))
    return 0 if is_done else 1


def _draw_end(view: Document, is_done: bool) -> None:
    if not is_done:
        print("The rebalance goes on; `ozy rebalance --stop` ends it.")
    elif view["moves"]:
        print(f"{paint('rebalanced', GREEN)}: {counted(len(view['moves']), 'move')} would be next.")
    else:
        print(f"{paint('rebalanced', GREEN)}: no move is worth it any more.")


def _draw_stopped(found: Document) -> None:
    print(sentence(found["reason"]))


def _draw_forecast(found: Document) -> None:
    for move in found["moves"]:
        words = f"{move['instance']} {move['source']} -> {move['to']}: {clean(move['reason'])}"
        print(paint("  > ", YELLOW) + words)
    if not found["moves"]:
        print("No move is worth it.")
        return
    before, after = found["before"], found["after"]
    print()
    rows = [
        (words, before[name], after[name]) for name, words in SUMS if before[name] or after[name]
    ]
    rows += [
        (f"{fill['node']} full", f"{fill['percent_before']} %", f"{fill['percent_after']} %")
        for fill in found["nodes"]
    ]
    print_table(("GAIN", "BEFORE", "AFTER"), rows, empty="")
    print(f"{counted(len(found['moves']), 'move')}.")
    _draw_notes(found)
