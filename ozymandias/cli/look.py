"""Looking inside: commands run in an instance, and events."""

import json
import sys
from typing import Any

import click

from ozymandias.cli.client import Client, Document, connect
from ozymandias.cli.complete import complete_instance, complete_job, complete_node
from ozymandias.cli.main import Interrupted
from ozymandias.cli.options import cluster_options, job_and_namespace, settings
from ozymandias.cli.render import (
    DIM,
    GREEN,
    RED,
    clean,
    is_plain,
    named,
    paint,
    print_document,
    print_table,
    when,
)

_KIND_WIDTH, _ABOUT_WIDTH, _NODE_WIDTH = 18, 16, 4  # where nothing is known of what will come
_BAD = ("lost", "failed", "unhealthy", "degraded", "not_stopped")
_GOOD = ("healthy", "recovered")


@click.command("exec")
@click.argument("instance", shell_complete=complete_instance)
@click.argument("command", nargs=-1, required=True, type=click.UNPROCESSED)
@click.option(
    "-c", "--container", default="", metavar="NAME", help="Which one, where there are several."
)
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
    Examples:
      ozy exec web-0 date
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
@click.option(
    "--job", default="", metavar="JOB", shell_complete=complete_job, help="Only of this job."
)
@click.option(
    "--node", default="", metavar="NODE", shell_complete=complete_node, help="Only told by it."
)
@click.option(
    "--tail",
    type=click.IntRange(1, 1000),
    default=100,
    show_default=True,
    metavar="N",
    help="Only the last N of what has happened.",
)
@cluster_options
def events(follow: bool, job: str, node: str, tail: int) -> None:
    """List what happened, with reasons.

    NODE is the node that tells it. Each node keeps its last 500 events. With -o json and --follow
    there is one JSON object per line.

    \b
    Examples:
      ozy events --job web
      ozy events -f
      ozy events --follow -o json
    """
    client = connect()
    namespace, name = job_and_namespace(job) if job else (settings().namespace, "")
    query: dict[str, Any] = {"namespace": namespace, "job": name, "node": node, "limit": tail}
    if follow:
        try:
            _follow(client, query)
        except KeyboardInterrupt:
            raise Interrupted("") from None
        return
    rows = client.get("events", **query)["items"]
    if settings().output != "table":
        print_document(rows, settings().output)
        return
    cells = [(when(r["time"]), r["node"], r["kind"], _about(r), r["reason"]) for r in rows]
    header = ("TIME", "NODE", "EVENT", "ABOUT", "REASON")
    print_table(header, cells, empty="Nothing has happened yet.", state=2, colour=_colour)


def _follow(client: Client, query: dict[str, Any]) -> None:
    """A line each, in columns that grow with what comes."""
    widths = [_NODE_WIDTH, _KIND_WIDTH, _ABOUT_WIDTH]
    for line in client.lines("events", follow="1", **query):
        if not line.startswith("data: "):
            continue
        row = json.loads(line.removeprefix("data: "))
        if settings().output != "table":
            print(json.dumps(row, ensure_ascii=False), flush=True)
        elif "problem" in row:
            problem = row["problem"]
            print(f"{problem['title']}: {clean(problem['detail'])}", file=sys.stderr)
        else:
            cells = [str(row["node"]), str(row["kind"]), _about(row)]
            widths = [max(w, len(c)) for w, c in zip(widths, cells, strict=True)]
            node, kind, about = (c.ljust(w) for c, w in zip(cells, widths, strict=True))
            kind = kind if is_plain() else paint(kind, _colour(row["kind"]))
            time = paint(when(row["time"]), DIM)
            print(f"{time}  {node}  {kind}  {about}  {clean(row['reason'])}", flush=True)


def _colour(kind: str) -> str:
    last = str(kind).rpartition(".")[2]
    return RED if last in _BAD else GREEN if last in _GOOD else ""


def _about(row: Document) -> str:
    """The instance, job or node that an event is about; its reason names a node that was lost."""
    if row["kind"] == "node.lost":
        return str(row["reason"]).split(" ", 1)[0]
    if row["kind"].startswith("node."):
        return str(row["node"])
    return named(row, str(row["instance"] or row["job"] or "-"))
