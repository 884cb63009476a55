"""Names of the cluster's jobs, instances and nodes, and of contexts, for the shell's completion.

Asked for on every press of the tab key: one question to the first node that listens, a moment's
patience, and silence on any failure.
"""

from typing import Any

import click

CONNECT_SECONDS = 0.1
ANSWER_SECONDS = 0.2
ENDPOINTS_MAX = 2


def complete_job(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[str]:
    return _starting(incomplete, _names(ctx, "jobs", "job"))


def complete_instance(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[str]:
    return _starting(incomplete, _names(ctx, "instances", "instance"))


def complete_either(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[str]:
    """Instances of the job that is being typed; before that, jobs alone."""
    rows = _rows(ctx, "instances")
    jobs = _starting(incomplete, sorted({_name(ctx, row, "job") for row in rows} - {""}))
    names = _starting(incomplete, (_name(ctx, row, "instance") for row in rows))
    return [*jobs, *names] if len(jobs) <= 1 else jobs


def complete_node(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[str]:
    return _starting(incomplete, (str(row["name"]) for row in _rows(ctx, "nodes")))


def complete_context(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[str]:
    from ozymandias.cli.context import read

    try:
        return _starting(incomplete, sorted(read()[1]))
    except Exception:  # a file that can't be read
        return []


def _starting(incomplete: str, names: Any) -> list[str]:
    return list(dict.fromkeys(name for name in names if name and name.startswith(incomplete)))


def _names(ctx: click.Context, what: str, member: str) -> list[str]:
    return [_name(ctx, row, member) for row in _rows(ctx, what)]


def _name(ctx: click.Context, row: dict[str, Any], member: str) -> str:
    """As it is typed here: with its namespace, unless that is given or the default one."""
    given = _settings(ctx).namespace
    name, namespace = str(row[member]), str(row["namespace"])
    if given:
        return name if namespace == given else ""
    return name if namespace == "default" else f"{namespace}/{name}"


def _settings(ctx: click.Context) -> Any:
    from ozymandias.cli.options import Settings

    return ctx.find_root().ensure_object(Settings)


def _rows(ctx: click.Context, what: str) -> list[dict[str, Any]]:
    from ozymandias.cli.client import Client
    from ozymandias.cli.context import load

    try:
        context = load(_settings(ctx).context)
        context.endpoints = context.endpoints[:ENDPOINTS_MAX]
        client = Client(context, connect_seconds=CONNECT_SECONDS)
        rows: list[dict[str, Any]] = client.get(what, timeout=ANSWER_SECONDS)["items"]
    except Exception:  # whatever it is, a shell's prompt is no place for it
        return []
    return rows
