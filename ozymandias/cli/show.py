"""Looking at the cluster: ps, jobs, status, nodes. One question, one table."""

import re
from typing import Any

import click

from ozymandias.cli.client import Client, Document, connect
from ozymandias.cli.complete import complete_job
from ozymandias.cli.options import cluster_options, job_and_namespace, settings
from ozymandias.cli.render import (
    DIM,
    YELLOW,
    job_name,
    named,
    paint,
    print_table,
    show,
    state_colour,
)
from ozymandias.model.units import counted, format_size

INSTANCE = re.compile(r"(.+)-(\d{1,9})")
_HEADER = ("INSTANCE", "NODE", "STATE", "VERSION", "RESTARTS", "ADDRESS", "REASON")


@click.command()
@click.argument("job", required=False, shell_complete=complete_job)
@cluster_options
def ps(job: str | None) -> None:
    """List instances: where they are and how they are.

    All namespaces, unless -n or a JOB is given. What waits for a place is listed too.

    \b
    Examples:
      ozy ps
      ozy ps web -o json
    """
    if job:
        namespace, name = job_and_namespace(job)
        found = connect().items("instances", namespace=namespace, job=name)
    else:
        found = connect().items("instances", namespace=settings().namespace)
    show(found, _draw_instances)


def _draw_instances(rows: list[Document]) -> None:
    cells = [
        (
            named(row),
            row["node"],
            row["state"],
            row["version"],
            row["restarts"],
            row["address"],
            row["reason"],
        )
        for row in rows
    ]
    print_table(_HEADER, cells, empty="No instances.", state=2)


@click.command()
@cluster_options
def jobs() -> None:
    """List jobs.

    All namespaces, unless -n is given.

    \b
    Examples:
      ozy jobs
      ozy jobs -n shop -o json
    """
    show(connect().items("jobs", namespace=settings().namespace), _draw_jobs)


def _draw_jobs(rows: list[Document]) -> None:
    # Nobody who uses no priorities is shown a column of zeros; an older daemon does not tell.
    is_ranked = any(row.get("priority") for row in rows)
    cells = [
        (
            row["job"],
            row["namespace"],
            *((row.get("priority", 0),) if is_ranked else ()),
            row["state"],
            f"{row['healthy']}/{row['wanted']}",
            row["pending"] or "",
            row["version"],
            ", ".join(row["hosts"]),
        )
        for row in rows
    ]
    priority = ("PRIORITY",) if is_ranked else ()
    header = ("JOB", "NAMESPACE", *priority, "STATE", "HEALTHY", "PENDING", "VERSION", "HOSTS")
    state = header.index("STATE")
    print_table(header, cells, empty="No jobs. `ozy submit FILE` runs one.", state=state)


@click.command()
@click.argument("job", required=False, shell_complete=complete_job)
@click.option("-w", "--watch", is_flag=True, help="Go on showing how it changes, until Ctrl-C.")
@cluster_options
def status(job: str | None, watch: bool) -> None:
    """Show the cluster at a glance, or one job with its instances.

    Of the cluster it also says whether the loss of any one node would be survived. With -o json
    and --watch there is one JSON object per line and change.

    \b
    Examples:
      ozy status
      ozy status web
      ozy status web --watch
    """
    client = connect()
    if job is None:
        if watch:
            raise click.UsageError("--watch is for one JOB.")
        show(client.get("status"), _draw_cluster)
        return
    namespace, name = job_and_namespace(job)
    if watch:
        from ozymandias.cli.watch import Watch

        quiet = settings().output != "table"
        Watch(client, namespace, name, timeout=float("inf"), quiet=quiet).until_interrupted()
        return
    found = client.get("jobs", namespace, name)
    show(found, lambda document: _draw_status(client, document))


def _draw_status(client: Client, found: Document) -> None:
    name = job_name(found)
    verb = "has" if found["state"] in ("failed", "completed") else "is"
    state = f"{verb} {paint(found['state'], state_colour(found['state']))}"
    pending = f", {found['pending']} pending" if found["pending"] else ""
    nodes = " nodes" if found["type"] == "system" else ""
    print(
        f"{name} version {found['version']} {state}:"
        f" {found['healthy']} of {found['wanted']}{nodes} healthy{pending}"
    )
    if found["frozen"]:
        print(f"  The change to version {found['version']} waits: {found['frozen']}")
    if found["problem"]:
        print(f"  {found['problem']['title']}: {found['problem']['detail']}")
        if found["problem"].get("hint"):
            print(paint(f"  {found['problem']['hint']}", DIM))
    if found["hosts"]:
        from ozymandias.cli.job import urls

        for url in urls(client.context.ingress, found["hosts"]):
            print(f"  {url}")
    if found["instances"]:
        print()
        _draw_instances(found["instances"])


def _draw_cluster(found: Document) -> None:
    print(f"nodes      {_counts(found['nodes'])}")
    print(f"memory     {_used(found['memory_bytes'])}")
    print(f"disk       {_used(found['disk_bytes'])}")
    print(f"jobs       {_counts(found['jobs'])}")
    print(f"instances  {_counts(found['instances'])}")
    if found.get("drifting"):  # an older daemon does not count them
        do, them = ("does", "it") if found["drifting"] == 1 else ("do", "them")
        drift = f"{counted(found['drifting'], 'instance')} {do} without what the job prefers"
        print(f"drift      {paint(drift, YELLOW)}; `ozy drift` lists {them}")
    print(found["survival"]["text"])
    if found["pending"]:
        print()
        cells = [(named(row), row["reason"]) for row in found["pending"]]
        print_table(("PENDING", "REASON"), cells, empty="")


def _counts(states: dict[str, int]) -> str:
    """``3 ready, 1 lost``"""
    parts = [f"{count} {paint(s, state_colour(s))}" for s, count in states.items()]
    return ", ".join(parts) or "none"


@click.command()
@cluster_options
def nodes() -> None:
    """List nodes and what is allocated on them.

    \b
    Examples:
      ozy nodes
      ozy nodes -o json | jq '.[].state'
    """
    show(connect().items("nodes"), _draw_nodes)


def _draw_nodes(rows: list[Document]) -> None:
    # Where all of them schedule, as in every small cluster, nobody need be told.
    some = any(row["state"] != "lost" and not row.get("schedules", True) for row in rows)
    # Cores are counted nearly everywhere; they are of interest once something has set some aside.
    cores = any(row["cpu_millis"]["allocated"] or row["cpu_millis"]["reserved"] for row in rows)
    cells = [
        (
            row["name"],
            row["state"],
            *(("yes" if row.get("schedules", True) else "no",) if some else ()),
            row["instances"],
            _used(row["memory_bytes"]),
            _used(row["disk_bytes"]),
            *((_used_cores(row["cpu_millis"]),) if cores else ()),
            ", ".join(f"{k}={v}" for k, v in sorted(row["labels"].items())),
            row.get("reason", ""),
        )
        for row in rows
    ]
    schedules = ("SCHEDULES",) if some else ()
    cpu = ("CPU",) if cores else ()
    header = ("NODE", "STATE", *schedules, "INSTANCES", "MEMORY", "DISK", *cpu, "LABELS", "REASON")
    print_table(header, cells, empty="No nodes.", state=1)


def _used(sizes: dict[str, int]) -> str:
    """``1.5G of 4G``: what is allocated, of what may be."""
    offered = sizes["total"] - sizes["reserved"]
    kept = f", {format_size(sizes['reserved'])} reserved" if sizes["reserved"] else ""
    return f"{format_size(sizes['allocated'])} of {format_size(offered)}{kept}"


def _used_cores(millis: dict[str, int]) -> str:
    """``1.5 of 4``, in cores."""
    if not millis["total"]:
        return "not counted"
    kept = f", {millis['reserved'] / 1000:g} reserved" if millis["reserved"] else ""
    offered = millis["total"] - millis["reserved"]
    return f"{millis['allocated'] / 1000:g} of {offered / 1000:g}{kept}"


def either(name: str, of_job: Any, of_instance: Any) -> Any:
    """A job's answer; if there is no such job and the name can be an instance's, the instance's."""
    match = INSTANCE.fullmatch(name)
    if match is None:
        return of_job()
    from ozymandias.problems import ProblemError

    try:
        return of_job()
    except ProblemError as error:
        if error.problem.kind.slug != "job-not-found":
            raise
    return of_instance()
