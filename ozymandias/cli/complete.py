"""Names of the cluster's jobs and instances for the shell's completion.

Asked for on every press of the tab key: one short question, and silence on any failure.
"""

from typing import Any

import click

SECONDS = 1.0


def complete_job(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[str]:
    return [row["job"] for row in _rows("jobs") if str(row["job"]).startswith(incomplete)]


def complete_instance(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[str]:
    names = [row["instance"] for row in _rows("instances")]
    return [name for name in names if str(name).startswith(incomplete)]


def complete_either(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[str]:
    return complete_job(ctx, param, incomplete) + complete_instance(ctx, param, incomplete)


def _rows(what: str) -> list[dict[str, Any]]:
    from ozymandias.cli.client import Client
    from ozymandias.cli.context import load

    try:
        rows: list[dict[str, Any]] = Client(load()).get(what, timeout=SECONDS)["items"]
    except Exception:  # whatever it is, a shell's prompt is no place for it
        return []
    return rows
