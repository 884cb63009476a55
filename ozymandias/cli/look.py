"""Looking inside: logs, commands run in an instance, events."""

import json
import sys
import time
from collections.abc import Iterator
from typing import Any

import click

from ozymandias.cli.client import Client, Document, connect
from ozymandias.cli.complete import complete_either, complete_instance, complete_job
from ozymandias.cli.options import cluster_options, job_and_namespace, settings
from ozymandias.cli.render import DIM, clean, paint, print_document, print_table
from ozymandias.cli.show import either

_COLOURS = ("36", "35", "34", "33", "32", "96", "95", "94")


@click.command()
@click.argument("target", metavar="JOB|INSTANCE", shell_complete=complete_either)
@click.option("-f", "--follow", is_flag=True, help="Go on printing what is written.")
@click.option("--tail", type=click.IntRange(min=0), metavar="N", help="Only the last N lines.")
@click.option("-c", "--container", default="", help="Only this container.")
@click.option("-t", "--timestamps", is_flag=True, help="Print when each line was written.")
@cluster_options
def logs(target: str, follow: bool, tail: int | None, container: str, timestamps: bool) -> None:
    """Print what a job or instance has written.

    Lines of a job with several instances are sorted by time; when followed, they come as they
    are written. With -o json and --follow there is one JSON object per line.

    \b
    Examples:
      ozy logs web --tail 50
      ozy logs web-0 -c app -f
    """
    client = connect()
    namespace, name = job_and_namespace(target)
    query: dict[str, Any] = {"container": container, "follow": "1" if follow else ""}
    if tail is not None:
        query["tail"] = str(tail)
    lines = either(
        name,
        lambda: _first(client.lines("jobs", namespace, name, "logs", **query)),
        lambda: _first(client.lines("instances", namespace, name, "logs", **query)),
    )
    documents = (json.loads(line) for line in lines)
    if settings().output != "table":
        _print_stream(documents, follow)
        return
    prefixes: dict[str, str] = {}
    for document in documents:
        _print_log_line(document, prefixes, timestamps)


def _first(lines: Iterator[str]) -> Iterator[str]:
    """Ask now, so that a problem shows before the first line is used."""
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


def _print_log_line(document: Document, prefixes: dict[str, str], timestamps: bool) -> None:
    if "problem" in document:
        problem = document["problem"]
        name = document.get("instance", "")
        text = f"{problem['title']}: {problem['detail']}"
        print(f"{name + ': ' if name else ''}{clean(text)}", file=sys.stderr)
        return
    source = f"{document['instance']} {document['container']}"
    if source not in prefixes:
        prefixes[source] = paint(f"{source} |", _COLOURS[len(prefixes) % len(_COLOURS)])
    when = paint(_clock(document["time"]) + " ", DIM) if timestamps else ""
    print(f"{prefixes[source]} {when}{clean(document['text'])}", flush=True)


@click.command("exec")
@click.argument("instance", shell_complete=complete_instance)
@click.argument("command", nargs=-1, required=True, type=click.UNPROCESSED)
@click.option("-c", "--container", default="", help="Which container, where there are several.")
@click.option(
    "--timeout",
    type=click.FloatRange(min=0, min_open=True, max=3600),
    default=60.0,
    show_default=True,
    metavar="SECONDS",
    help="How long the command may take.",
)
@cluster_options
def exec_(instance: str, command: tuple[str, ...], container: str, timeout: float) -> int:
    """Run a command inside an instance.

    Put -- before a command that has options. Ends with the command's own exit code.

    \b
    Example:
      ozy exec web-0 -c app -- ls -l /data
    """
    namespace, name = job_and_namespace(instance)
    body = {"container": container, "command": list(command), "timeout_seconds": timeout}
    path = ("instances", namespace, name, "exec")
    found = connect().post(*path, body=body, timeout=timeout + 15.0)
    if settings().output != "table":
        print_document(found, settings().output)
    else:
        sys.stdout.write(found["stdout"])
        sys.stdout.flush()
        sys.stderr.write(found["stderr"])
    code: int = found["exit_code"]
    return code


@click.command()
@click.option("-f", "--follow", is_flag=True, help="Go on printing what happens.")
@click.option("--job", default="", shell_complete=complete_job, help="Only of this job.")
@click.option("--node", default="", help="Only of this node.")
@click.option("--tail", type=click.IntRange(1, 1000), default=100, show_default=True, metavar="N")
@cluster_options
def events(follow: bool, job: str, node: str, tail: int) -> None:
    """List what happened, with reasons.

    \b
    Examples:
      ozy events --job web
      ozy events --follow -o json
    """
    client = connect()
    namespace, name = job_and_namespace(job) if job else (settings().namespace, "")
    query: dict[str, Any] = {"namespace": namespace, "job": name, "node": node, "limit": tail}
    if follow:
        _follow_events(client, query)
        return
    rows = client.get("events", **query)["items"]
    if settings().output != "table":
        print_document(rows, settings().output)
        return
    cells = [(_clock(r["time"]), r["node"], r["kind"], _about(r), r["reason"]) for r in rows]
    header = ("TIME", "NODE", "EVENT", "ABOUT", "REASON")
    print_table(header, cells, empty="Nothing has happened yet.")


def _follow_events(client: Client, query: dict[str, Any]) -> None:
    for line in client.lines("events", follow="1", **query):
        if not line.startswith("data: "):
            continue
        row = json.loads(line.removeprefix("data: "))
        if settings().output != "table":
            print(json.dumps(row, ensure_ascii=False), flush=True)
        else:
            text = f"{_clock(row['time'])}  {row['node']}  {row['kind']}  {_about(row)}  "
            print(text + clean(row["reason"]), flush=True)


def _about(row: Document) -> str:
    """The instance, or the job, that an event is about."""
    name = str(row["instance"] or row["job"] or "-")
    if "/" in name or row["namespace"] in ("", "default"):
        return name
    return f"{row['namespace']}/{name}"


def _clock(seconds: float) -> str:
    return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(seconds))
