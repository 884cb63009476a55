"""Why is it there, and why is it not: `ozy why`, `ozy why-not`."""

from collections.abc import Iterator

import click

from ozymandias.cli.client import Document, connect
from ozymandias.cli.complete import complete_either, complete_job, complete_node
from ozymandias.cli.options import cluster_options, job_and_namespace
from ozymandias.cli.render import DIM, clean, named, paint, print_table, show, when
from ozymandias.cli.show import either
from ozymandias.model.units import counted, format_size, is_or_are

WORK_SECONDS = 60.0  # suggestions are tried out before they are made
NO_NODE = "No nodes are on record."
NOBODY = "Nobody is on record."


@click.command()
@click.argument("target", metavar="JOB|INSTANCE", shell_complete=complete_either)
@cluster_options
def why(target: str) -> None:
    """Explain why a job or instance is where and as it is.

    Of an instance also what every node was to it when it was placed: its rank and what counted, or
    what spoke against it, computed again from what the decision was made on; if others had to leave
    for it, or it had to leave, who else could have and at what cost. Of a job with pending
    instances what each node is short of, and changes that would give them a place.

    \b
    Examples:
      ozy why web
      ozy why web-2
    """
    client = connect()
    namespace, name = job_and_namespace(target)
    found = either(
        name,
        lambda: client.get("jobs", namespace, name, "why", timeout=WORK_SECONDS),
        lambda: client.get("instances", namespace, name, "why", timeout=WORK_SECONDS),
    )
    show(found, _draw)


def _draw(found: Document) -> None:
    for line in found["lines"]:
        print(clean(line))
    if decision := found.get("decision"):
        print()
        print(f"Decision {decision['id']}, {when(decision['time'])}: {clean(decision['reason'])}")
        draw_verdicts(decision["nodes"])
        if (missing := decision["nodes_total"] - len(decision["nodes"])) > 0:
            more = f"{counted(missing, 'more node')} {is_or_are(missing)}"
            print(paint(f"{more} not on record: the cluster is large.", DIM))
            _draw_counts(decision)
        if not decision["exact"]:
            print(paint("The record does not hold all that the decision was made on.", DIM))
        if contest := decision.get("contest"):
            print()
            _draw_contest(contest, "It fits nowhere else, so others had to leave.")
    if displaced := found.get("displaced"):
        contest = displaced["contest"]
        whom = f"{named(contest, contest['job'])} (priority {contest['priority']})"
        print()
        print(f"Decision {displaced['id']}, {when(displaced['time'])}:")
        start = f"It had to leave {contest['node']} for {whom}, which fits nowhere else."
        _draw_contest(contest, start)


def _draw_contest(contest: Document, start: str) -> None:
    """Node by node who would have had to leave; then those of the node that was chosen."""
    print(f"{start} What each node would have cost, the least first:")
    costs = []
    for row in contest["nodes"]:
        names = [
            f"{named(v, v['instance'])} ({v['priority']}{', serves' * v['serves']})"
            for v in row["victims"]
        ]
        mark = f"{row['node']} *" if row["chosen"] else row["node"]
        vain = format_size(row["waste_bytes"]) if names else None
        costs.append((mark, len(names) or None, vain, row["against"] or ", ".join(names)))
    print_table(("NODE", "LEAVE", "FREED IN VAIN", "WHO"), costs, empty=NOBODY)
    if more := contest["nodes_left_out"]:
        print(paint(f"{counted(more, 'more node')} would have cost no less.", DIM))
    print()
    header = (f"ON {contest['node']}", "PRIORITY", "SERVES", "MEMORY", "WHAT BECAME OF IT")
    print_table(header, [*_could_leave(contest), *_staying(contest)], empty=NOBODY)
    if more := contest["candidates_left_out"]:
        print(paint(f"{counted(more, 'more instance')} could have left.", DIM))
    if not contest["exact"]:
        print(paint("The record does not hold all that they were chosen by.", DIM))


def _could_leave(contest: Document) -> Iterator[tuple[object, ...]]:
    for row in contest["candidates"]:
        left, slots = row["left"], row["slots"]
        what = (
            "left" if left == slots else f"{row['job']}-{left} left" if left else "could have left"
        )
        who, size = named(row, f"{row['job']}-{slots}"), format_size(row["memory_bytes"])
        yield who, row["priority"], "yes" if row["serves"] else "no", size, what


def _staying(contest: Document) -> Iterator[tuple[object, ...]]:
    for row in contest["staying"]:
        who = named(row, f"{row['job']}-{row['slots']}")
        yield who, None, None, None, f"stays: {row['reason']}"


def _draw_counts(decision: Document) -> None:
    """What all nodes were, those that are not on record included."""
    if decision.get("feasible") is None:
        return
    nodes = counted(decision["nodes_total"], "node")
    print(f"Of all {nodes} {decision['feasible']} could have taken it.")
    for reason, count in decision["rejected"].items():
        print(f"  {count} {'was' if count == 1 else 'were'} {clean(reason)}")


@click.command("why-not")
@click.argument("job", shell_complete=complete_job)
@click.argument("node", shell_complete=complete_node)
@cluster_options
def why_not(job: str, node: str) -> None:
    """Explain why a job is not on a node.

    What speaks against another instance there, with the numbers, or by what other nodes come before
    it; and changes that would let it go there, each tried out on a copy of the cluster.

    \b
    Example:
      ozy why-not web n2
    """
    found = connect().get("jobs", *job_and_namespace(job), "why-not", node, timeout=WORK_SECONDS)
    show(found, _draw_why_not)


def _draw_why_not(found: Document) -> None:
    for line in found["lines"]:
        print(clean(line))
    for suggestion in found["suggestions"]:
        print(f"It could if you {clean(suggestion['text'])}.")
    if found["nodes"]:
        print()
        draw_verdicts(found["nodes"])


def draw_verdicts(rows: list[Document]) -> None:
    """Nodes by rank with what counted, the chosen one marked; then what spoke against others."""
    cells = [(row["node"], row["rank"] or None, row["against"] or _terms(row)) for row in rows]
    chosen = {row["node"] for row in rows if row.get("chosen", row.get("is_chosen"))}
    marked = [(f"{node} *" if node in chosen else node, *rest) for node, *rest in cells]
    print_table(("NODE", "RANK", "WHAT COUNTED"), marked, empty=NO_NODE)


def _terms(row: Document) -> str:
    terms = row["terms"].items() if isinstance(row["terms"], dict) else row["terms"]
    return ", ".join(f"{name} {value:g}" for name, value in terms)
