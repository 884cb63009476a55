"""`ozy install`: a host made a node, seen step by step. The work is done by cluster/install.py."""

import os
import sys
from pathlib import Path

import click

from ozymandias.cli import context as contexts
from ozymandias.cli.options import output_option, settings
from ozymandias.cli.render import BOLD, GREEN, RED, YELLOW, clean, paint, show
from ozymandias.cluster import install as installing
from ozymandias.cluster import units


@click.command()
@click.option("--dry-run", is_flag=True, help="Show the steps and do nothing.")
@click.option("--remove", is_flag=True, help="Remove the units; settings, state and pods stay.")
@click.option("--start", is_flag=True, help="Start the units at once.")
@click.option(
    "--root",
    type=click.Path(path_type=Path, file_okay=False),
    default=Path("/"),
    help="Install into this directory tree, for an image or a package; systemd is not asked.",
)
@click.option(
    "--prefix",
    type=click.Path(path_type=Path, file_okay=False),
    help="Where the programs are installed, in its bin (default: beside this ozy).",
)
@output_option
def install(dry_run: bool, remove: bool, start: bool, root: Path, prefix: Path | None) -> int:
    """Make this host a node: units, settings, a token.

    Prints each step. What is there is left as it is: again, it changes nothing. Settings, tokens
    and state are never overwritten and never removed. The host keeps the hash of the new token; the
    token itself goes into your contexts and is printed once.

    \b
    Examples:
      ozy install --dry-run
      ozy install
      ozy install --root image --prefix /opt/ozymandias
    """
    bin_dir = (prefix.absolute() / "bin") if prefix else Path(sys.executable).absolute().parent
    target = installing.Target(root=root.absolute(), bin_dir=bin_dir, start=start)
    if not dry_run:
        installing.require_root(target)
    steps = list((installing.plan_removal if remove else installing.plan)(target))
    is_table = settings().output == "table"
    report = []
    for done in installing.carry_out(steps, target.root, dry_run=dry_run):
        report.append(done)
        if is_table:
            colour = {"done": GREEN, "would": YELLOW, "failed": RED}.get(done.outcome, "")
            detail = f": {clean(done.detail)}" if done.detail else ""
            print(f"{paint(f'{done.outcome:<9}', colour)} {done.what}{detail}", flush=True)
    if not is_table:
        show([done.document() for done in report], lambda _: None)
    if token := next((done.secret for done in report if done.secret), ""):
        hand_over(token)
    if report[-1].outcome == "failed":
        return 1
    if is_table and not remove:
        if units.is_in_a_home(bin_dir):
            print(f"Note: {bin_dir} is in a home directory, which unprivileged units can't enter.")
        settings_file = target.root / installing.SETTINGS / "ozymandias.toml"
        print(f"Next: edit {settings_file}, then `systemctl start {' '.join(units.SERVICES)}`;")
        print(f"`ozy doctor --config {settings_file}` tells what is missing.")
    return 0


def hand_over(token: str) -> None:
    """The new token, to the file of contexts and to the terminal; nobody can ask for it again."""
    is_table = settings().output == "table"
    if is_table:  # first: the file of contexts may be one that can't be written
        print(f"The token of this host, shown once: {paint(token, BOLD)}", flush=True)
    name = os.uname().nodename
    context = contexts.Context(name=name, endpoints=(contexts.DEFAULT_ENDPOINT,), token=token)
    contexts.put(context, make_current=not contexts.read()[0])
    if is_table:
        print(f"It is in {contexts.context_file()}, too, as context {name}.")
