"""Hosts under pressure: who would leave them, in which order, and why."""

from typing import Any

import click

from ozymandias.cli.client import connect
from ozymandias.cli.complete import complete_node
from ozymandias.cli.options import context_option, output_option
from ozymandias.cli.render import GREEN, YELLOW, clean, named, paint, show
from ozymandias.model.units import counted


@click.command()
@click.argument("name", metavar="[NODE]", required=False, shell_complete=complete_node)
@click.option("--plan", is_flag=True, help="Show the order; nothing is changed, with or without.")
@context_option
@output_option
def shed(name: str | None, plan: bool) -> None:
    """Show who leaves a host that is under pressure, in which order, and who stays.

    While a host is short of memory or disk its node takes no new work; if that lasts, instances
    leave it one by one, the lowest priority first. That happens by itself: this only shows the
    order, of one node or of all, those under pressure first.

    \b
    Examples:
      ozy shed --plan
      ozy shed --plan n2
    """
    client = connect()
    names = [name] if name else [row["name"] for row in client.items("nodes")]
    found = [client.get("nodes", each, "shed") for each in names]
    found.sort(key=lambda document: not document["pressure"])
    show(found[0] if name else found, lambda _: _draw(found))


def _draw(nodes: list[dict[str, Any]]) -> None:
    for document in nodes:
        _draw_node(document)


def _draw_node(document: dict[str, Any]) -> None:
    pressure = document["pressure"]
    leaving, staying = document["leaving"], document["staying"]
    state = f"under {clean(pressure)}" if pressure else "under no pressure"
    asked = document["keeps"]
    wish = f"; it would keep {counted(asked, 'instance')} now" if asked is not None else ""
    print(f"{document['node']} is {state}{wish}.")
    for number, row in enumerate(leaving, 1):
        where = f"-> {row['to']}" if row["to"] else "stops"
        text = f"{named(row)} (priority {row['priority']}) {where}: {clean(row['reason'])}"
        print(paint(f"  {number}. ", YELLOW) + text)
    for row in staying:
        text = f"{named(row)} (priority {row['priority']}) stays: {clean(row['reason'])}"
        print(paint("  = ", GREEN) + text)
    if not leaving and not staying:
        print("  Nothing is on it.")
