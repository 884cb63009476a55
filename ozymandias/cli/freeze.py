"""Freeze windows of the cluster: times in which nothing is changed that can wait."""

import click

from ozymandias.cli.client import Document, connect
from ozymandias.cli.options import context_option, output_option
from ozymandias.cli.render import YELLOW, clean, paint, print_table, show
from ozymandias.cli.settings import draw_change

_REASON = click.option("--reason", default="", metavar="TEXT", help="Why, for all to see.")
_ZONE = click.option(
    "--timezone", default="UTC", show_default=True, metavar="ZONE", help="Such as Europe/Berlin."
)


@click.group(invoke_without_command=True)
@context_option
@output_option
@click.pass_context
def freeze(ctx: click.Context) -> None:
    """List or set times in which nothing is changed.

    While a window holds, rollouts, rebalancing and autoscaling wait. What must not wait does not:
    lost nodes are repaired, drains go on, what is pending is placed, and people may submit (the new
    version is rolled out when the window ends) and scale.

    \b
    Examples:
      ozy freeze
      ozy freeze add nights --from 22:00 --to 06:00 --timezone Europe/Berlin --reason "no one looks"
      ozy freeze now --for 2h --reason "a demo"
      ozy freeze remove now --reason "the demo is over"
    """
    if ctx.invoked_subcommand is None:
        show(connect().get("freezes"), _draw)


def _draw(found: Document) -> None:
    cells = [
        (
            row["name"],
            "now" if row["frozen"] else "-",
            f"{row['from']} - {row['to']}" if row["from"] else "once",
            row["weekdays"],
            row["timezone"],
            _about(row),
        )
        for row in found["items"]
    ]
    header = ("NAME", "HOLDS", "TIME", "DAYS", "ZONE", "REASON")
    print_table(header, cells, empty="No freeze windows: changes are made at any time.")
    if found["frozen"]:
        print(paint(f"\nThe cluster is {clean(found['frozen'])}.", YELLOW))


def _about(row: Document) -> str:
    if not row["until"]:
        return str(row["reason"])
    from ozymandias.model.week import format_moment

    end = f"until {format_moment(row['until'], row['timezone'])}"
    return f"{end}: {row['reason']}" if row["reason"] else end


@freeze.command("add")
@click.argument("name")
@click.option("--from", "start", required=True, metavar="HH:MM", help="When it begins.")
@click.option(
    "--to", "end", required=True, metavar="HH:MM", help="When it ends; on the next day if earlier."
)
@click.option(
    "--weekdays",
    default="daily",
    show_default=True,
    metavar="DAYS",
    help="On which it begins: mon-fri, or sat,sun.",
)
@_ZONE
@_REASON
@context_option
@output_option
def add(name: str, start: str, end: str, weekdays: str, timezone: str, reason: str) -> None:
    """Add a window of every week, or replace the one of this name.

    It goes by what the clocks of its time zone show, also in the nights when they are put forward
    or back. The same time twice is a whole day.

    \b
    Example:
      ozy freeze add weekend --from 16:00 --to 16:00 --weekdays fri,sat --timezone Europe/Berlin
    """
    body = {
        "from": start,
        "to": end,
        "weekdays": weekdays,
        "timezone": timezone,
        "reason": reason,
    }
    show(connect().change("PUT", "freezes", name, body=body), draw_change)


@freeze.command("now")
@click.option("--for", "duration", required=True, metavar="DURATION", help="How long, e.g. 2h.")
@click.option("--name", default="now", show_default=True, help="What it is called.")
@_ZONE
@_REASON
@context_option
@output_option
def now(duration: str, name: str, timezone: str, reason: str) -> None:
    """Freeze from now on, once.

    \b
    Example:
      ozy freeze now --for 2h --reason "a demo"
    """
    from ozymandias.model.units import parse_duration

    try:
        seconds = parse_duration(duration)
    except ValueError as error:
        raise click.BadParameter(str(error), param_hint="--for") from None
    if seconds <= 0:
        raise click.BadParameter("it must be above 0", param_hint="--for")
    body = {"for_seconds": seconds, "timezone": timezone, "reason": reason}
    show(connect().change("PUT", "freezes", name, body=body), draw_change)


@freeze.command("remove")
@click.argument("name")
@click.option(
    "--reason", default="", metavar="TEXT", help="Why; recorded, and needed while it holds."
)
@context_option
@output_option
def remove(name: str, reason: str) -> None:
    """Remove a window; what waited for its end goes on at once.

    \b
    Examples:
      ozy freeze remove nights
      ozy freeze remove now --reason "the demo is over"
    """
    show(connect().change("DELETE", "freezes", name, reason=reason), draw_change)
