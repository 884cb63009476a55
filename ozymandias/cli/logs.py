"""`ozy logs`: what instances write, and the last words of those that have ended.

Every instance has its colour, also those that join while a job is followed; the names before the
lines are padded, so that the lines stand in one column. Off a terminal the text is the same
without colours.
"""

import json
import sys
from collections.abc import Iterator
from typing import Any

import click

from ozymandias.cli.client import Client, Document, connect
from ozymandias.cli.complete import complete_either
from ozymandias.cli.main import Interrupted
from ozymandias.cli.options import cluster_options, job_and_namespace, settings
from ozymandias.cli.render import BOLD, DIM, RED, clean, paint, print_document, when
from ozymandias.cli.show import either

# Those that can be read on dark and light ground; red and green are left to states.
COLOURS = (
    *("36", "33", "35", "34", "96", "93", "95", "94"),
    *("38;5;208", "38;5;105", "38;5;37", "38;5;173", "38;5;75", "38;5;170", "38;5;143", "38;5;66"),
)


@click.command()
@click.argument("target", metavar="JOB|INSTANCE", shell_complete=complete_either)
@click.option("-f", "--follow", is_flag=True, help="Go on printing what is written.")
@click.option("-p", "--previous", is_flag=True, help="The last lines of what has ended.")
@click.option("--tail", type=click.IntRange(min=0), metavar="N", help="Only the last N lines.")
@click.option("-c", "--container", default="", metavar="NAME", help="Only this container.")
@click.option("-t", "--timestamps", is_flag=True, help="Print when each line was written.")
@cluster_options
def logs(
    target: str,
    follow: bool,
    previous: bool,
    tail: int | None,
    container: str,
    timestamps: bool,
) -> None:
    """Print what a job or instance has written.

    Lines of a job with several instances are sorted by time. When followed, they come as they are
    written, and instances that start later join. With -o json and --follow there is one JSON object
    per line.

    --previous prints what is left of runs that have ended, the newest last, each under a line that
    says where and how it ended. Every node keeps the last 200 lines of each, ten runs per instance
    and 200 in all, also when the job is long gone.

    \b
    Examples:
      ozy logs web --tail 50
      ozy logs web -f                all instances, also those that join
      ozy logs web-0 -c app -f
      ozy logs web-0 --previous      why did it end?
    """
    if follow and previous:
        raise click.UsageError("What has ended can't be followed: give -f or --previous.")
    query: dict[str, Any] = {
        "container": container,
        "follow": "1" if follow else "",
        "previous": "1" if previous else "",
        "tail": "" if tail is None else str(tail),
    }
    client = connect()
    try:
        _print(_ask(client, target, query), target, follow, previous, timestamps)
    except KeyboardInterrupt:
        raise Interrupted("" if follow else "Interrupted.") from None


def _print(
    documents: Iterator[Document], target: str, follow: bool, previous: bool, timestamps: bool
) -> None:
    if settings().output != "table":
        _print_stream(documents, follow)
    elif previous:
        _draw_ended(list(documents), target, timestamps)
    else:
        printer = _Printer(timestamps)
        for document in documents:
            printer.put(document)


def _ask(client: Client, target: str, query: dict[str, Any]) -> Iterator[Document]:
    namespace, name = job_and_namespace(target)
    lines = either(
        name,
        lambda: _begun(client.lines("jobs", namespace, name, "logs", **query)),
        lambda: _begun(client.lines("instances", namespace, name, "logs", **query)),
    )
    return (json.loads(line) for line in lines)


def _begun(lines: Iterator[str]) -> Iterator[str]:
    """Asked now, so that a problem shows before the first line is used."""
    found = next(lines, None)
    return iter(()) if found is None else _chained(found, lines)


def _chained(first: str, rest: Iterator[str]) -> Iterator[str]:
    yield first
    yield from rest


def _print_stream(documents: Iterator[Document], follow: bool) -> None:
    if not follow:
        print_document(list(documents), settings().output)
        return
    for document in documents:
        sys.stdout.write(json.dumps(document, ensure_ascii=False) + "\n")
        sys.stdout.flush()


class _Printer:
    """Lines with the name of their source before them."""

    def __init__(self, timestamps: bool) -> None:
        self._timestamps = timestamps
        self._width = 0

    def put(self, document: Document) -> None:
        if "problem" in document:
            _say_problem(document)
            return
        instance = str(document["instance"])
        slot = instance.rpartition("-")[2]
        colour = COLOURS[int(slot) % len(COLOURS) if slot.isdecimal() else 0]
        source = f"{instance} {document['container']}"
        self._width = max(self._width, len(source))
        prefix = paint(f"{source:<{self._width}} |", colour)
        time = paint(when(document["time"]) + " ", DIM) if self._timestamps else ""
        print(f"{prefix} {time}{clean(document['text'])}", flush=True)


def _say_problem(document: Document) -> None:
    problem = document["problem"]
    name = document.get("instance") or document.get("node") or ""
    text = str(problem.get("detail") or problem["title"])
    print(f"{name + ': ' if name else ''}{clean(text)}", file=sys.stderr, flush=True)


# What has ended -----------------------------------------------------------------------------------


def _draw_ended(runs: list[Document], target: str, timestamps: bool) -> None:
    """The newest last: that is where a reader begins."""
    for silent in (run for run in runs if "problem" in run):
        _say_problem(silent)
    ended = [run for run in runs if "problem" not in run]
    if not ended:
        print(f"Nothing is kept of {target}: none of it has ended, or long ago.")
    for number, run in enumerate(reversed(ended)):
        if number:
            print()
        print(_headline(run))
        for line in run["lines"]:
            time = paint(when(line["time"]) + " ", DIM) if timestamps else ""
            print(time + clean(line["text"]))
        if not run["lines"]:
            print(paint("(it has written nothing)", DIM))


def _headline(run: Document) -> str:
    from ozymandias.model.units import format_duration

    who = paint(f"==> {run['instance']} {run['container']}", BOLD)
    ran = ""
    if run["started_at"]:
        seconds = run["ended_at"] - run["started_at"]
        ran = f" after {format_duration(round(seconds, 1 if seconds < 10 else 0))}"
    has_failed = run["oom_killed"] or run["exit_code"] not in (None, 0)
    cause = str(run["reason"])
    if run["oom_killed"]:
        cause += f" (exit code {run['exit_code']})"
    return (
        f"{who} version {run['version']} on {run['node']},"
        f" until {when(run['ended_at'])}{ran}: {paint(clean(cause), RED if has_failed else '')}"
    )
