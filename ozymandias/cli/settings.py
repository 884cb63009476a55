"""Settings of the cluster: shown, and changed one or several at a time."""

import click

from ozymandias.cli.client import Document, connect
from ozymandias.cli.options import context_option, output_option
from ozymandias.cli.render import DIM, paint, print_table, sentence, show


@click.group(invoke_without_command=True)
@context_option
@output_option
@click.pass_context
def settings(ctx: click.Context) -> None:
    """Show or change what holds for all jobs.

    How full nodes are packed, how far instances are moved of their own accord, classes of priority,
    and which nodes the jobs of a namespace are for.

    \b
    Examples:
      ozy settings
      ozy settings set --target 80 --rebalance on
      ozy settings set --class batch=100 --pool 'prod=role == prod'
    """
    if ctx.invoked_subcommand is None:
        show(connect().get("settings"), _draw)


def _draw(found: Document) -> None:
    print(f"target     {found['target_percent']} % of a node's memory, then spread")
    print(f"rebalance  {found['rebalance']}")
    print()
    predefined = found["predefined_classes"]
    classes = {**predefined, **found["priority_classes"]}
    rows = [
        (name, number, "predefined" if name in predefined else "-")
        for name, number in sorted(classes.items(), key=lambda item: (-item[1], item[0]))
    ]
    print_table(("CLASS", "PRIORITY", "NOTE"), rows, empty="")
    print()
    pools = [
        (namespace, "only" if pool["hard"] else "preferred", "; ".join(pool["require"]))
        for namespace, pool in found["pools"].items()
    ]
    empty = "No node pools: the jobs of every namespace may run on any node."
    print_table(("NAMESPACE", "POOL", "NODES WHERE"), pools, empty=empty)
    if found["revision"]:
        print(paint(f"\nrevision {found['revision']}", DIM))


@settings.command("set")
@click.option(
    "--target",
    type=int,
    metavar="PERCENT",
    help="Pack nodes up to this share of their memory, 10 to 100, then spread.",
)
@click.option(
    "--rebalance",
    type=click.Choice(("off", "suggest", "on")),
    help="Move instances to be better placed: never, say what would move, or do.",
)
@click.option(
    "--class", "classes", multiple=True, metavar="NAME=NUMBER", help="A class of priority."
)
@click.option("--no-class", "no_classes", multiple=True, metavar="NAME", help="Take it away.")
@click.option(
    "--pool",
    "pools",
    multiple=True,
    metavar="NAMESPACE=RULE",
    help="Jobs of the namespace run only on nodes that match; again for more rules.",
)
@click.option(
    "--prefer-pool",
    "preferred",
    multiple=True,
    metavar="NAMESPACE=RULE",
    help="As --pool, but only where there is room there.",
)
@click.option("--no-pool", "no_pools", multiple=True, metavar="NAMESPACE", help="Take it away.")
@click.option(
    "--if-revision",
    type=click.IntRange(min=0),
    metavar="N",
    help="Only if the settings are still at revision N; exit code 5 if not.",
)
@context_option
@output_option
def change(
    target: int | None,
    rebalance: str | None,
    classes: tuple[str, ...],
    no_classes: tuple[str, ...],
    pools: tuple[str, ...],
    preferred: tuple[str, ...],
    no_pools: tuple[str, ...],
    if_revision: int | None,
) -> None:
    """Change settings; what is not named stays as it is.

    Jobs keep the number of the class that they were submitted with. A pool's rules are those of
    `placement.require` in job files; giving some replaces those that the namespace had.

    \b
    Examples:
      ozy settings set --target 80
      ozy settings set --class batch=100 --no-class nightly
      ozy settings set --pool 'prod=role == prod' --prefer-pool 'dev=role == dev'
    """
    body: Document = {}
    if target is not None:
        body["target_percent"] = target
    if rebalance is not None:
        body["rebalance"] = rebalance
    numbers = {name: _number(text) for name, text in (_pair(t, "--class") for t in classes)}
    if numbers or no_classes:
        body["priority_classes"] = numbers | dict.fromkeys(no_classes)
    if pools or preferred or no_pools:
        body["pools"] = _pools(pools, preferred) | dict.fromkeys(no_pools)
    if not body:
        raise click.UsageError("Nothing to change: give at least one option.")
    show(connect().change("PATCH", "settings", body=body, revision=if_revision), draw_change)


def _pools(pools: tuple[str, ...], preferred: tuple[str, ...]) -> dict[str, Document | None]:
    found: dict[str, Document | None] = {}
    for texts, hint, is_hard in ((pools, "--pool", True), (preferred, "--prefer-pool", False)):
        for namespace, rule in (_pair(text, hint) for text in texts):
            pool = found.setdefault(namespace, {"require": [], "hard": is_hard})
            if pool is None or pool["hard"] is not is_hard:
                raise click.BadParameter(
                    f"{namespace} is given to --pool too", param_hint="--prefer-pool"
                )
            pool["require"].append(rule)
    return found


def _pair(text: str, hint: str) -> tuple[str, str]:
    name, sign, rest = text.partition("=")
    if not sign or not name.strip() or not rest.strip():
        raise click.BadParameter(f"{text!r} is not NAME=…", param_hint=hint)
    return name.strip(), rest.strip()


def _number(text: str) -> int:
    try:
        return int(text)
    except ValueError:
        raise click.BadParameter(f"{text!r} is not a number", param_hint="--class") from None


def draw_change(found: Document) -> None:
    print(sentence(found["reason"]))
