"""Options that every command has, and what they were set to.

`-o`, `-n` and `--context` may stand before the command or after it; the last one wins. A command
asks `settings()` and never parses them itself.
"""

from collections.abc import Callable
from typing import Any, TypeVar

import click

OUTPUTS = ("table", "json", "yaml")

Decorated = TypeVar("Decorated", bound=Callable[..., Any])


class Settings:
    """What the options say. One per run, shared through click's context."""

    __slots__ = ("context", "namespace", "output")

    def __init__(self) -> None:
        self.output = "table"
        self.namespace = ""  # "" means not given
        self.context = ""


def settings() -> Settings:
    return click.get_current_context().ensure_object(Settings)


def _remember(ctx: click.Context, param: click.Parameter, value: str | None) -> None:
    if value is not None and param.name:
        setattr(ctx.find_root().ensure_object(Settings), param.name, value)


def output_option(function: Decorated) -> Decorated:
    return click.option(
        "-o",
        "--output",
        type=click.Choice(OUTPUTS),
        callback=_remember,
        expose_value=False,
        help="How to print the result; errors too.",
    )(function)


def namespace_option(function: Decorated) -> Decorated:
    return click.option(
        "-n",
        "--namespace",
        metavar="NAME",
        callback=_remember,
        expose_value=False,
        help="Namespace of the job (default: default).",
    )(function)


def _complete_context(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[str]:
    from ozymandias.cli.complete import complete_context

    return complete_context(ctx, param, incomplete)


def context_option(function: Decorated) -> Decorated:
    return click.option(
        "--context",
        metavar="NAME",
        shell_complete=_complete_context,
        callback=_remember,
        expose_value=False,
        help="Cluster to talk to; see `ozy context`.",
    )(function)


def cluster_options(function: Decorated) -> Decorated:
    """What a command that talks to a cluster about jobs has."""
    return output_option(namespace_option(context_option(function)))


def waiting_options(function: Decorated) -> Decorated:
    """What a command that waits for its effect has."""
    detached = click.option("-d", "--detach", is_flag=True, help="Do not wait for the effect.")
    timeout = click.option(
        "--timeout",
        type=click.FloatRange(min=0),
        default=300.0,
        show_default=True,
        metavar="SECONDS",
        help="How long to wait; the job goes on regardless.",
    )
    return detached(timeout(function))


def version_option(function: Decorated) -> Decorated:
    """For a change that is meant for what one has seen."""
    return click.option(
        "--if-version",
        type=click.IntRange(min=1),
        metavar="N",
        help="Only if the job still has version N; exit code 5 if not.",
    )(function)


def _with_reason(ctx: click.Context, param: click.Parameter, value: str | None) -> str:
    if value is not None and not value.strip():
        raise click.BadParameter("it needs a reason, which is recorded", ctx=ctx, param=param)
    return value or ""


def override_option(function: Decorated) -> Decorated:
    """For a change that waits for the end of a freeze window."""
    return click.option(
        "--override-freeze",
        default=None,
        callback=_with_reason,
        metavar="REASON",
        help="Do not wait for the end of a freeze window; the reason is recorded.",
    )(function)


def job_and_namespace(name: str) -> tuple[str, str]:
    """``web``, ``shop/web``, or ``-n shop web`` -> (namespace, name)."""
    namespace, slash, short = name.partition("/")
    if not slash:
        return settings().namespace or "default", name
    if not namespace or not short or "/" in short:
        raise click.BadParameter(f"{name!r} is not JOB or NAMESPACE/JOB")
    if settings().namespace not in ("", namespace):
        raise click.BadParameter(f"{name!r} is not in namespace {settings().namespace!r}")
    return namespace, short
