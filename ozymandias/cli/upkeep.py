"""Nodes of a running cluster: cordon, drain, label. Talks to the cluster, knows no machine.

A drain shows what would move where, and what could not, before anything is changed; then it waits
until the node is empty, which happens whether anybody waits or not.
"""

import time
from typing import Any

import click

from ozymandias.cli.client import Client, Document, connect
from ozymandias.cli.complete import complete_node
from ozymandias.cli.options import context_option, output_option, settings, waiting_options
from ozymandias.cli.render import GREEN, RED, YELLOW, clean, paint, sentence, show
from ozymandias.model.units import counted, parse_duration

POLL_SECONDS = 0.5


@click.command()
@click.argument("name", metavar="NODE", shell_complete=complete_node)
@context_option
@output_option
def cordon(name: str) -> None:
    """Let a node take no new work; what is on it stays.

    System jobs are not kept away by it.

    \b
    Example:
      ozy node cordon n2
    """
    show(connect().post("nodes", name, "cordon"), _draw_change)


@click.command()
@click.argument("name", metavar="NODE", shell_complete=complete_node)
@context_option
@output_option
def uncordon(name: str) -> None:
    """Let a node take work again.

    \b
    Example:
      ozy node uncordon n2
    """
    show(connect().post("nodes", name, "uncordon"), _draw_change)


@click.command()
@click.argument("name", metavar="NODE", shell_complete=complete_node)
@context_option
@output_option
def undrain(name: str) -> None:
    """End a drain: what has not left stays, and the node takes work again.

    \b
    Example:
      ozy node undrain n2
    """
    show(connect().post("nodes", name, "undrain"), _draw_change)


@click.command()
@click.argument("name", metavar="NODE", shell_complete=complete_node)
@click.argument("labels", nargs=-1, required=True, metavar="KEY=VALUE|KEY-...")
@context_option
@output_option
def label(name: str, labels: tuple[str, ...]) -> None:
    """Set labels of a node, or take them away (KEY-).

    They win over those of the node's settings, and outlive its restarts. Job files refer to them
    in `placement`.

    \b
    Examples:
      ozy node label n2 role=infra disk=ssd
      ozy node label n2 role-
    """
    put = dict(text.split("=", 1) for text in labels if "=" in text)
    rest = [text for text in labels if "=" not in text]
    wrong = [text for text in rest if not text.endswith("-")]
    if wrong:
        raise click.BadParameter(f"{wrong[0]!r} is neither KEY=VALUE nor KEY-")
    body = {"set": put, "remove": [text.removesuffix("-") for text in rest]}
    show(connect().post("nodes", name, "labels", body=body), _draw_change)


@click.command()
@click.argument("name", metavar="NODE", shell_complete=complete_node)
@click.option(
    "--deadline",
    metavar="DURATION",
    help="After this long, e.g. 10m, what could not move is stopped and waits for room.",
)
@click.option("--dry-run", is_flag=True, help="Show what would move where, and change nothing.")
@click.option("--force", is_flag=True, help="Begin though some instances can't move now.")
@click.option("--reason", default="", metavar="TEXT", help="Why, for the record.")
@waiting_options
@context_option
@output_option
def drain(
    name: str,
    deadline: str | None,
    dry_run: bool,
    force: bool,
    reason: str,
    detach: bool,
    timeout: float,
) -> int:
    """Empty a node: start its instances elsewhere, and stop them here once those are healthy.

    Shows first what would move where. If something could not, for want of room or because its
    volumes are kept there, nothing is begun and the exit code is 3; --force begins all the same. A
    drain goes on until it is done or ended by `ozy node undrain`, also when nobody waits for it.

    \b
    Examples:
      ozy node drain n2 --dry-run
      ozy node drain n2 --deadline 10m
    """
    body: Document = {"force": force, "reason": reason, "deadline_seconds": _seconds(deadline)}
    client = connect()
    if dry_run:
        found = client.post("nodes", name, "drain", body=body | {"dry_run": True})
        show(found, _draw_outlook)
        return 3 if found["blockers"] else 0
    found = client.post("nodes", name, "drain", body=body)
    is_table = settings().output == "table"
    if is_table:
        _draw_outlook(found)
    if detach:
        if not is_table:
            show(found, lambda _: None)
        return 0
    return _wait(client, name, found, timeout, is_table)


def _seconds(text: str | None) -> float:
    if text is None:
        return 0.0
    try:
        seconds = parse_duration(text)
    except ValueError as error:
        raise click.BadParameter(str(error), param_hint="--deadline") from None
    if seconds <= 0:
        raise click.BadParameter(
            "it must be above 0; without it there is none", param_hint="--deadline"
        )
    return seconds


def _wait(client: Client, name: str, found: Document, timeout: float, is_table: bool) -> int:
    """Until nothing is left on the node; 1 when that takes too long."""
    from ozymandias.cli.main import Interrupted

    until = time.monotonic() + timeout
    row, told = found["node"], None
    try:
        while row["instances"] and row["drain"] and time.monotonic() < until:
            if is_table and told != row["instances"]:
                told = row["instances"]
                print(f"{counted(told, 'instance')} on {name}", flush=True)
            time.sleep(POLL_SECONDS)
            row = client.get("nodes", name)
    except KeyboardInterrupt:
        hint = f"`ozy node undrain {name}` ends it."
        raise Interrupted(f"The drain of {name} goes on; {hint}") from None
    document = found | {"node": row}
    is_done = not row["instances"]
    show(document, lambda _: _draw_end(name, row))
    return 0 if is_done else 1


def _draw_end(name: str, row: Document) -> None:
    if not row["instances"]:
        print(f"{paint('drained', GREEN)} {name}: nothing is left on it.")
        return
    if not row["drain"]:
        stay = "stays" if row["instances"] == 1 else "stay"
        print(f"The drain of {name} was ended; {counted(row['instances'], 'instance')} {stay}.")
        return
    print(f"{counted(row['instances'], 'instance')} still on {name}; the drain goes on.")
    for blocker in row["drain"]["blockers"]:
        print(paint("  ! ", RED) + f"{blocker['instance']}: {clean(blocker['reason'])}")


def _draw_outlook(found: Document) -> None:
    for mover in found["movers"]:
        where = f"-> {mover['to']}" if mover["to"] else "ends"
        print(paint("  > ", YELLOW) + f"{mover['instance']} {where}: {clean(mover['reason'])}")
    for blocker in found["blockers"]:
        print(paint("  ! ", RED) + f"{blocker['instance']}: {clean(blocker['reason'])}")
    moving = len(found["movers"])
    stuck = len(found["blockers"])
    name = found["node"]["name"]
    words = f"{counted(moving, 'instance')} to leave {name}"
    print(f"{words}, {stuck} that can't now." if stuck else f"{words}.")


def _draw_change(found: dict[str, Any]) -> None:
    print(sentence(found["reason"], found["node"]["name"]))
