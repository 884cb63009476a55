"""Nodes: looked after anywhere; stopped and started where they are processes on this machine."""

import click

from ozymandias.cli.complete import complete_node
from ozymandias.cli.founding_upkeep import leave
from ozymandias.cli.local import local_state_dir, showing_logs, state_dir_option
from ozymandias.cli.options import context_option, output_option
from ozymandias.cli.render import show
from ozymandias.cli.upkeep import cordon, drain, label, uncordon, undrain
from ozymandias.model.units import counted


@click.group()
def node() -> None:
    """Look after one node: cordon, drain, label; kill and start it on this machine.

    \b
    Examples:
      ozy node drain n2 --dry-run
      ozy node label n2 role=infra
      ozy node kill n2
    """


@node.command("kill")
@click.argument("name", shell_complete=complete_node)
@state_dir_option
@context_option
@output_option
def kill(name: str, state_dir: str | None) -> None:
    """Stop a node as a power cut would: its daemon and its pods are gone, without a good-bye.

    \b
    Example:
      ozy node kill n2
    """
    from ozymandias.cluster import local

    pods = local.kill_node(local_state_dir(state_dir), name)
    gone = f"Killed {name} and its {counted(pods, 'pod')}."
    text = f"{gone} `ozy node start {name}` brings it back."
    show({"node": name, "killed": True, "pods": pods}, lambda _: print(text))


@node.command("start")
@click.argument("name", shell_complete=complete_node)
@state_dir_option
@context_option
@output_option
def start(name: str, state_dir: str | None) -> None:
    """Bring a killed node back, and wait until it is ready.

    \b
    Example:
      ozy node start n2
    """
    from ozymandias.cluster import local

    with showing_logs():
        seconds = local.start_node(local_state_dir(state_dir), name)
    text = f"{name} is ready, after {seconds:.1f} s."
    show({"node": name, "ready": True, "seconds": round(seconds, 2)}, lambda _: print(text))


for command in (cordon, uncordon, drain, undrain, label):
    node.add_command(command)
node.add_command(leave)
