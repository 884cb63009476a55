"""Pools: jobs that scale themselves by what is pending."""

import time

import click

from ozymandias.cli.client import Document, connect
from ozymandias.cli.options import cluster_options, settings
from ozymandias.cli.render import print_table, show

_HEADER = ("POOL", "NAMESPACE", "LIVE", "WANTED", "MIN", "MAX", "PENDING", "SINCE", "REASON")


@click.command()
@cluster_options
def pools() -> None:
    """List jobs that scale themselves, and what is pending.

    SINCE is how long ago the source began to say what it says now; it is asked as often as the job
    file has it, and what is no news is not written down. All namespaces, unless -n is given.

    \b
    Examples:
      ozy pools
      ozy pools -n ci -o json
    """
    show(connect().items("pools", namespace=settings().namespace), _draw)


def _draw(rows: list[Document]) -> None:
    cells = [
        (
            row["pool"],
            row["namespace"],
            row["live"],
            row["wanted"],
            row["min"],
            row["max"],
            "?" if row["pending"] is None else row["pending"],
            _ago(row["seen_at"]),
            _reason(row),
        )
        for row in rows
    ]
    empty = "No pools. A job with `autoscale` in its file is one."
    print_table(_HEADER, cells, empty=empty)


def _reason(row: Document) -> str:
    """With the freeze, unless what the pool did last hung on it and says so."""
    reason, frozen = str(row["reason"]), row["frozen"]
    return f"{reason}; {frozen}" if frozen and frozen not in reason else reason


def _ago(moment: float | None) -> str:
    if moment is None:
        return "never"
    from ozymandias.model.units import format_duration

    return f"{format_duration(max(0, round(time.time() - moment)))} ago"
