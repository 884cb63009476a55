"""Changing jobs: submit, plan, scale, restart, stop."""

from typing import Any

import click

from ozymandias.cli.client import Client, Document, connect
from ozymandias.cli.complete import complete_job, complete_node
from ozymandias.cli.display import done
from ozymandias.cli.foresee import (
    WORK_SECONDS,
    draw_followed,
    draw_notes,
    draw_outcome,
    draw_survival,
)
from ozymandias.cli.frozen import way_on
from ozymandias.cli.jobfile import read_file, with_source
from ozymandias.cli.options import (
    cluster_options,
    job_and_namespace,
    override_option,
    settings,
    version_option,
    waiting_options,
)
from ozymandias.cli.render import (
    GREEN,
    RED,
    YELLOW,
    clean,
    job_name,
    named,
    paint,
    print_document,
    show,
)
from ozymandias.cli.watch import Watch
from ozymandias.model.units import counted, format_cores, format_duration, format_size
from ozymandias.problems import CATALOGUE, ProblemError

SEEN_SECONDS = 5.0


@click.command()
@click.argument("file", type=click.Path(allow_dash=True))
@click.option("-m", "--message", default="", help="Why; kept with the version.")
@override_option
@version_option
@waiting_options
@cluster_options
def submit(
    file: str,
    message: str,
    override_freeze: str,
    if_version: int | None,
    detach: bool,
    timeout: float,
) -> None:
    """Run a job file, or change the job that it describes.

    Waits until all instances are healthy, or until it is clear that they will not be: an instance
    has failed for good, or is still failing after three tries. In a freeze window a change is taken
    at once, and its instances are replaced when the window ends. FILE may be - for standard input.

    \b
    Examples:
      ozy submit web.yaml
      ozy submit web.yaml -m "new logo" --timeout 60
      generate-job | ozy submit - --detach
    """
    data, shown = read_file(file)
    client = connect()
    try:
        change = client.post(
            "jobs",
            body=data,
            file=shown,
            message=message,
            override_freeze=override_freeze,
            once=True,
            version=if_version,
        )
    except ProblemError as error:
        raise with_source(error, data) from None
    _tell(_submitted(change))
    # What a script reads from stdout is the status; nobody is to miss a note for that.
    draw_notes(change["plan"], is_aside=settings().output != "table")
    _finish(client, change, detach, timeout)


def _submitted(change: Document) -> str:
    name = job_name(change)
    if not change["changed"]:
        return f"{name} is unchanged at version {change['version']}."
    plan = change["plan"]
    parts = [f"{len(plan[verb])} to {verb}" for verb in ("place", "stop", "move") if plan[verb]]
    if parts:
        follows = ", ".join(parts)
    elif change["created"] or not change["wanted"]:
        follows = "it has no instances for now"
    else:
        follows = "instances are replaced one at a time"
    return f"{name} version {change['version']} submitted: {follows}."


@click.command()
@click.argument("file", type=click.Path(allow_dash=True))
@click.option(
    "--lose-node",
    "lose_nodes",
    multiple=True,
    metavar="NODE",
    shell_complete=complete_node,
    help="And what if this node is lost afterwards; again for more, all at once.",
)
@click.option(
    "--lose-any",
    type=click.IntRange(1, 10),
    metavar="K",
    help="And whether the loss of any K nodes is survived.",
)
@cluster_options
def plan(file: str, lose_nodes: tuple[str, ...], lose_any: int | None) -> int:
    """Show exactly what submit would do, and why.

    Nothing is changed. Defaults are shown filled in, and a note tells what the job prefers in vain,
    such as a label that no node has, or a job to be apart from that is not there. Exit code 3 when
    the job does not fit, with what is free on each node and a change that would make it fit.

    \b
    Examples:
      ozy plan web.yaml
      ozy plan web.yaml --lose-any 1
      ozy plan web.yaml -o json | jq .place
    """
    data, shown = read_file(file)
    client = connect()
    try:
        found = client.post(
            "plan",
            body=data,
            timeout=WORK_SECONDS,
            file=shown,
            lose_node=",".join(lose_nodes),
            lose_any=lose_any,
        )
    except ProblemError as error:
        raise with_source(error, data) from None
    show(found, lambda found: _draw_plan(client, found))
    return _exit_code(found["problem"])


def _exit_code(problem: Any) -> int:
    if not problem:
        return 0
    slug = str(problem.get("type", "")).rpartition("#")[2]
    return next((kind.exit_code for kind in CATALOGUE if kind.slug == slug), 1)


def _draw_plan(client: Client, found: Document) -> None:
    disk = f" and {format_size(found['disk_bytes'])} of disk" if found["disk_bytes"] else ""
    # A daemon of an earlier version does not tell of cores.
    cores = f" and {format_cores(found['cpu_millis'])}" if found.get("cpu_millis") else ""
    each = "" if found["wanted"] == 1 else "each "
    print(
        f"{job_name(found)} version {found['version']}: {counted(found['wanted'], 'instance')},"
        f" {each}{format_size(found['memory_bytes'])} of memory{disk}{cores}"
    )
    for container in found["containers"]:
        check = f"{container['healthcheck']} check" if container["healthcheck"] else "no check"
        print(
            f"    {container['name']}: {container['image']},"
            f" memory {format_size(container['memory_bytes'])}, restart {container['restart']},"
            f" {check}"
        )
    if found["problem"]:
        draw_notes(found)
        _draw_misfit(found["problem"])
        return
    _draw_steps(found)
    draw_followed(found)
    draw_notes(found)
    if found.get("frozen"):  # a daemon of an earlier version does not tell
        print(paint(f"But nothing is replaced now: {clean(found['frozen'])}.", YELLOW))
        print(way_on(client, "submit"))
    if found.get("lose_node"):
        print()
        draw_outcome(found["lose_node"])
    if found.get("lose_any"):
        print()
        draw_survival(found["lose_any"])


def _draw_steps(found: Document) -> None:
    for row in found["place"]:
        print(paint("  + ", GREEN) + f"{named(row)} on {row['node']}: {clean(row['reason'])}")
    for row in found["move"]:
        before, after = row.get("from", "?"), row.get("to", row.get("node"))
        where = f"{before} -> {after}"
        print(paint("  > ", YELLOW) + f"{named(row)} {where}: {clean(row['reason'])}")
    for row in found["stop"]:
        print(paint("  - ", RED) + f"{named(row)} on {row['node']}: {clean(row['reason'])}")
    staying = found.get("stay", [])  # a daemon of an earlier version does not tell
    for row in staying:
        print(paint("  = ", YELLOW) + f"{named(row)} on {row['node']}: {clean(row['reason'])}")
    counts = {verb: len(found[verb]) for verb in ("place", "move", "stop")}
    if not found.get("changed", True):
        print("Nothing would change.")
    else:
        said = ", ".join(f"{count} to {verb}" for verb, count in counts.items())
        they_are = "it is" if len(staying) == 1 else "they are"
        said += f", {len(staying)} to stay as {they_are}" if staying else ""
        print(f"It fits: {said}.")


def _draw_misfit(problem: Document) -> None:
    """The problem on stderr, as `submit` would show it."""
    import sys

    from ozymandias.cli.complain import problem_text
    from ozymandias.problems import INTERNAL, Problem

    slug = str(problem.get("type", "")).rpartition("#")[2]
    kind = next((kind for kind in CATALOGUE if kind.slug == slug), INTERNAL)
    hint = str(problem.get("hint", ""))
    value = Problem(kind=kind, detail=str(problem["detail"]), hint=hint, fields=problem)
    sys.stdout.flush()
    print(problem_text(value), file=sys.stderr)


@click.command()
@click.argument("job", shell_complete=complete_job)
@click.argument("instances", type=click.IntRange(min=0))
@version_option
@waiting_options
@cluster_options
def scale(job: str, instances: int, if_version: int | None, detach: bool, timeout: float) -> None:
    """Change how many instances a job has.

    \b
    Example:
      ozy scale web 5
    """
    client = connect()
    path = ("jobs", *job_and_namespace(job), "scale")
    change = client.post(*path, body={"instances": instances}, once=True, version=if_version)
    _tell(f"{job_name(change)} shall have {counted(instances, 'instance')}.")
    _finish(client, change, detach, timeout)


@click.command()
@click.argument("job", shell_complete=complete_job)
@override_option
@version_option
@waiting_options
@cluster_options
def restart(
    job: str, override_freeze: str, if_version: int | None, detach: bool, timeout: float
) -> None:
    """Replace all instances, one at a time.

    \b
    Example:
      ozy restart web
    """
    client = connect()
    path = ("jobs", *job_and_namespace(job), "restart")
    change = client.post(*path, once=True, version=if_version, override_freeze=override_freeze)
    _tell(f"{job_name(change)}: all instances are being replaced.")
    _finish(client, change, detach, timeout, "restart")


@click.command()
@click.argument("job", shell_complete=complete_job)
@version_option
@waiting_options
@cluster_options
def stop(job: str, if_version: int | None, detach: bool, timeout: float) -> None:
    """Remove a job and its instances; its history stays.

    Waits until the last instance is gone.

    \b
    Example:
      ozy stop web
    """
    client = connect()
    namespace, name = job_and_namespace(job)
    change = client.delete("jobs", namespace, name, version=if_version)
    quiet = settings().output != "table"
    if not detach:
        watch = Watch(client, namespace, name, timeout=timeout, quiet=quiet)
        watch.until_gone(change)
    if quiet:
        document = {"job": name, "namespace": namespace, "stopped": not detach}
        print_document(document, settings().output)
    elif detach:
        print(f"{job_name(change)} is being stopped.")
    else:
        done(f"{job_name(change)} is gone.")


def _finish(
    client: Client, change: Document, detach: bool, timeout: float, command: str = "submit"
) -> None:
    """Wait for a change's effect and show the job's status as it is then.

    ``command`` is the one that lets the change pass in a freeze: there is none for a scale, but
    what waits then was submitted before.
    """
    namespace, name = change["namespace"], change["job"]
    quiet = settings().output != "table"
    if detach:
        # Answered when the daemon has seen the change, so that it tells whether a freeze holds it.
        status = client.get(
            "jobs", namespace, name, after=change["revision"] - 1, wait=SEEN_SECONDS
        )
        if quiet:
            print_document(status, settings().output)
        elif status["frozen"]:
            _tell_frozen(client, change, status, command)
        else:
            print(f"Not waiting; `ozy status {job_name(change)}` shows how it goes.")
        return
    watch = Watch(client, namespace, name, timeout=timeout, quiet=quiet)
    status = watch.until_up(change)
    if quiet:
        print_document(status, settings().output)
        return
    if status["frozen"]:
        _tell_frozen(client, change, status, command)
        return
    took = format_duration(watch.elapsed_seconds)
    done(
        f"{job_name(change)} version {status['version']} is up:"
        f" {status['up_to_date']} of {counted(status['wanted'], 'instance')} healthy after {took}."
    )
    for url in urls(client.context.ingress, status["hosts"]):
        print(f"  {url}")


def _tell_frozen(client: Client, change: Document, status: Document, command: str) -> None:
    print(f"{job_name(change)} is {clean(status['frozen'])}: its instances are replaced then.")
    print(way_on(client, command))


def urls(ingress: str, hosts: list[str]) -> list[str]:
    """Where a job is reached, as it is typed into a browser."""
    scheme, separator, rest = ingress.partition("://")
    if not separator:
        return [f"http://{host} (through the ingress of any node)" for host in hosts]
    port = rest.rpartition(":")[2]
    suffix = f":{port}" if port.isdecimal() and port != "80" else ""
    found = []
    for host in hosts:
        name, slash, path = host.partition("/")
        found.append(f"{scheme}://{name}{suffix}{slash or '/'}{path}")
    return found


def _tell(text: str) -> None:
    if settings().output == "table":
        print(text, flush=True)
