"""`ozy up`, `down`, `node`, `doctor`: the cluster on this machine, made and looked after.

The work is done by `ozymandias/cluster/`; here is what people see of it, and the context that lets
the next `ozy` find the cluster without flags.
"""

import os
import signal
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any

import click

from ozymandias.cli import context as contexts
from ozymandias.cli.local import progress, showing_logs, state_dir_option
from ozymandias.cli.options import context_option, output_option, settings
from ozymandias.cli.render import BOLD, GREEN, RED, YELLOW, clean, paint, show
from ozymandias.cluster import local, planning, state
from ozymandias.problems import ProblemError

if TYPE_CHECKING:
    from ozymandias.cluster.doctor.check import Patient

CONTEXT = "local"
FOUNDED = Path("/etc/ozymandias/host.json")  # what `ozy cluster init` and `join` write
PORT = click.IntRange(0, 65535)


@click.command()
@click.option(
    "--nodes",
    type=click.IntRange(1, planning.NODES_MAX),
    default=3,
    show_default=True,
    metavar="N",
    help="How many nodes.",
)
@click.option("--memory", default="4G", show_default=True, help="What each node may allocate.")
@click.option("--disk", default="10G", show_default=True, help="What each node may allocate.")
@state_dir_option
@click.option("--ingress-port", type=PORT, help="Port of the ingress; 0 takes any free one.")
@click.option("--api-port", type=PORT, help="Port of the first node's API, the others follow.")
@output_option
def up(
    nodes: int,
    memory: str,
    disk: str,
    state_dir: str | None,
    ingress_port: int | None,
    api_port: int | None,
) -> None:
    """Start a cluster on this machine: real etcd, real podman, N nodes, guard, ingress and DNS.

    Returns when it is ready. A cluster that runs already is left as it is; one that was stopped by
    a power cut is brought back with its jobs.

    \b
    Examples:
      ozy up
      ozy up --nodes 5 --memory 2G --ingress-port 8088
    """
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, _interrupt)
    wish = planning.Wish(
        state_dir=Path(state_dir or state.DEFAULT_STATE_DIR).absolute(),
        nodes=nodes,
        memory=memory,
        disk=disk,
        ingress_port=ingress_port,
        api_port=api_port,
    )
    with showing_logs():
        found = local.up(wish, progress)
    cluster = found.cluster
    name = _remember(cluster)
    document = {
        "cluster": cluster.id,
        "context": name,
        "state_dir": str(cluster.state_dir),
        "nodes": [node.name for node in cluster.nodes],
        "api": list(cluster.endpoints),
        "ingress": cluster.ingress,
        "dns": f"127.0.0.1:{cluster.dns_port}",
        "token_file": str(cluster.token_file),
        "seconds": round(found.seconds, 2),
        "was_running": found.was_running,
        "was_stale": found.was_stale,
        "differs": _differences(wish, cluster) if found.was_running or found.was_stale else [],
    }
    show(document, _draw_up)


def _differences(wish: planning.Wish, cluster: state.LocalCluster) -> list[str]:
    """What was asked for and is otherwise in the cluster that is there."""
    pairs = (
        ("--nodes", wish.nodes, len(cluster.nodes)),
        ("--memory", wish.memory, cluster.memory),
        ("--disk", wish.disk, cluster.disk),
        ("--ingress-port", wish.ingress_port, cluster.ingress_port),
        ("--api-port", wish.api_port, cluster.nodes[0].api_port),
    )
    given = click.get_current_context().get_parameter_source
    return [
        f"{option} is {has}, not {asked}"
        for option, asked, has in pairs
        if asked not in (has, 0)
        and given(option.removeprefix("--").replace("-", "_"))
        is click.core.ParameterSource.COMMANDLINE
    ]


def _draw_up(document: dict[str, Any]) -> None:
    what = (
        "is running already"
        if document["was_running"]
        else f"is ready, after {document['seconds']:.1f} s"
    )
    if document["was_stale"]:
        what = f"is back with its jobs, after {document['seconds']:.1f} s"
    names = ", ".join(document["nodes"])
    port = document["ingress"].rpartition(":")[2]
    print(f"Cluster {paint(document['cluster'], BOLD)} {what}: {names}")
    for difference in document["differs"]:
        print(f"  {paint('note', YELLOW)}: {difference}; `ozy down` first, to make another one")
    print(f"  API      {document['api'][0]}  (token in {document['token_file']})")
    print(f"  ingress  {document['ingress']}  (in a browser: http://<job>.localhost:{port}/)")
    print(f"  DNS      {document['dns']}  (<job>.<namespace>.ozy.internal)")
    print(f"  logs     {document['state_dir']}/logs")
    print("Next: ozy submit jobspecs/hello-world.yaml; `ozy down` removes it all.")


def _remember(cluster: state.LocalCluster) -> str:
    """The context of this cluster: `local`, or with its id where `local` is another one's."""
    _, known = contexts.read()
    there = known.get(CONTEXT)
    mine = str(cluster.state_dir)
    taken = there is not None and there.local_state_dir not in ("", mine)
    if taken and there is not None and state.load(Path(there.local_state_dir)) is None:
        taken = False  # that cluster is gone
    name = f"{CONTEXT}-{cluster.id}" if taken else CONTEXT
    contexts.put(
        contexts.Context(
            name=name,
            endpoints=cluster.endpoints,
            token=cluster.token_file.read_text().strip(),
            ingress=cluster.ingress,
            local_state_dir=mine,
        )
    )
    return name


def _forget(state_dir: Path) -> None:
    """Every context of that cluster, and the file itself if nothing else is in it."""
    _, known = contexts.read()
    for name, found in known.items():
        if found.local_state_dir == str(state_dir):
            contexts.remove(name)
    if known and not contexts.read()[1]:
        file = Path(contexts.context_file())
        file.unlink(missing_ok=True)
        if file.parent.name == "ozymandias" and not any(file.parent.iterdir()):
            file.parent.rmdir()


@click.command()
@state_dir_option
@context_option
@output_option
def down(state_dir: str | None) -> None:
    """Remove the cluster that `ozy up` made, its pods, volumes, network, data and context.

    \b
    Example:
      ozy down
    """
    chosen = _chosen_state_dir(state_dir)
    removed = local.down(chosen)
    _forget(chosen)
    document = {
        "removed": removed is not None,
        "cluster": removed.id if removed else None,
        "state_dir": str(chosen),
    }
    if removed is None:
        show(document, lambda _: print(f"Nothing to remove: there is no cluster in {chosen}."))
    else:
        show(document, lambda _: print(f"Removed cluster {removed.id} and everything it made."))


@click.command()
@click.option(
    "--config",
    type=click.Path(path_type=Path, dir_okay=False),
    help="Examine this host by the settings file of its daemon.",
)
@context_option
@output_option
def doctor(config: Path | None) -> int:
    """Find out what is missing or wrong, and what to do about it.

    On a host of a founded cluster it examines that host, for root. Elsewhere, without --config, the
    cluster of the context in use: on this machine with all that it needs, or by its API. The exit
    code is 1 if something will not work.

    \b
    Examples:
      ozy doctor
      ozy doctor -o json | jq '.[] | select(.verdict != "ok")'
    """
    from ozymandias.cluster import doctor as doctors

    checks = []
    is_table = settings().output == "table"
    for check in doctors.examine(_patient(config)):
        checks.append(check)
        if is_table:
            verdict = paint(f"{check.verdict:<5}", _VERDICTS[check.verdict])
            print(f"{verdict} {check.name}: {clean(check.detail)}", flush=True)
            if check.remedy:
                print(f"      {clean(check.remedy)}")
    if is_table:
        print(doctors.count(checks))
    else:
        show([check.document() for check in checks], lambda _: None)
    return 1 if doctors.worst(checks) == "fail" else 0


_VERDICTS = {"ok": GREEN, "warn": YELLOW, "fail": RED}


def _patient(config: Path | None) -> "Patient":
    from ozymandias.cluster.doctor.check import Patient

    if config is not None:
        return Patient(config_file=config.absolute())
    if not settings().context and FOUNDED.exists() and os.geteuid() == 0:
        return Patient(config_file=FOUNDED.with_name("ozymandias.toml"))
    try:
        chosen = contexts.load(settings().context)
    except ProblemError:
        if settings().context:
            raise
        return Patient()
    return Patient(
        endpoints=chosen.endpoints,
        token=chosen.token,
        state_dir=Path(chosen.local_state_dir) if chosen.local_state_dir else None,
    )


# ----------------------------------------------------------------------------------------------


def _chosen_state_dir(given: str | None) -> Path:
    """The one given, or that of the context in use, or the usual one."""
    if given is not None:
        return Path(given).absolute()
    try:
        found = contexts.load(settings().context).local_state_dir
    except ProblemError:
        if settings().context:
            raise
        found = ""
    return Path(found) if found else state.DEFAULT_STATE_DIR


def _interrupt(number: int, frame: FrameType | None) -> None:
    raise KeyboardInterrupt
