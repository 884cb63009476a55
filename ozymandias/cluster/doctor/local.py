"""The cluster that `ozy up` made here: its supervisor, programs, store, podman, edges."""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from ozymandias.cluster import reach, state
from ozymandias.cluster.doctor import etcd, listeners, service, storage
from ozymandias.cluster.doctor.check import Check, fail, ok, warn
from ozymandias.cluster.state import LocalCluster
from ozymandias.daemon.config import EtcdConfig
from ozymandias.model.units import counted
from ozymandias.problems import ProblemError

DOMAIN = "ozy.internal"


def examine(state_dir: Path | None) -> Iterator[Check]:
    directory = state_dir or state.DEFAULT_STATE_DIR
    yield from storage.examine(directory)
    try:
        cluster = state.load(directory)
    except ProblemError as error:
        yield fail("local cluster", error.problem.detail, error.problem.hint)
        return
    if cluster is None:
        yield from listeners.usual()
    else:
        yield from running(cluster)


def running(cluster: LocalCluster) -> Iterator[Check]:
    try:
        status = reach.ask_supervisor(cluster, do="status")
    except TimeoutError:
        yield fail(
            "local cluster",
            f"the supervisor of {cluster.state_dir} does not answer",
            f"{cluster.logs / 'supervisor.log'} says why; `ozy down` and `ozy up` start anew.",
        )
        return
    except OSError:
        yield fail(
            "local cluster",
            f"{cluster.state_dir} holds a cluster that does not run (a power cut?)",
            "`ozy up` brings it back with its jobs, `ozy down` removes it.",
        )
        return
    yield ok("local cluster", f"{cluster.id} in {cluster.state_dir}")
    for program in status["programs"]:
        yield _program(program, cluster)
    revive = {p["name"]: _revive(p, cluster) for p in status["programs"]}
    checks, records = etcd.examine(
        EtcdConfig(endpoints=(f"127.0.0.1:{cluster.etcd_port}",)), start=f"{revive['etcd']}."
    )
    yield from checks
    yield from service.examine(
        cluster.podman_socket,
        cluster.network,
        records.images if records else {},
        start=f"{revive['podman']}.",
        restart=revive["podman"],
    )
    if records is not None:
        yield from _stale(records, status)
    yield listeners.ingress(("127.0.0.1", cluster.ingress_port))
    log = str(cluster.logs / "dns.log")
    yield listeners.dns(("127.0.0.1", cluster.dns_port), DOMAIN, log)


def _stale(records: etcd.Records, status: Mapping[str, Any]) -> Iterator[Check]:
    dead = {p["name"] for p in status["programs"] if p["pid"] is None}
    for node in records.nodes:
        if node.name in dead and node.presence is not None:
            yield warn(
                f"lease of {node.name}",
                "stale: the store still has the node as alive, but its daemon does not run",
                f"`ozy node start {node.name}`; else its instances go elsewhere in a few seconds.",
            )


def _revive(program: Mapping[str, Any], cluster: LocalCluster) -> str:
    """What helps against a program that runs and says nothing."""
    log = cluster.logs / f"{program['name']}.log"
    if program["pid"] is None:
        return f"{log} says why it ended; the supervisor tries again by itself"
    return f"`kill -9 {program['pid']}`: the supervisor starts it anew ({log})"


def _program(program: Mapping[str, Any], cluster: LocalCluster) -> Check:
    name = program["name"]
    if program["pid"] is not None:
        restarts = program["starts"] - 1
        detail = f"pid {program['pid']}" + (
            f", restarted {counted(restarts, 'time')}" if restarts else ""
        )
        if restarts:
            detail += f", last: {program['last_exit']}"
        if program["failures"]:
            return warn(name, detail, f"{cluster.logs / (name + '.log')} says why.")
        return ok(name, detail)
    if not program["wanted"]:
        return warn(name, "killed on purpose", f"`ozy node start {name}` brings it back.")
    return fail(
        name,
        f"not running: {program['last_exit']}",
        f"{cluster.logs / (name + '.log')} says why.",
    )
