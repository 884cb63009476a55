"""A whole cluster on this machine: making it, removing it, killing and starting its nodes.

`up` writes down what it is going to make, starts the supervisor and waits until every node is a
member and the edges answer. Whatever goes wrong on the way, and an interruption too, is undone.
`down` removes by label and by path, so that it needs nothing of the cluster to be alive.
"""

import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from ozymandias.cluster import planning, programs, reach, remains, state
from ozymandias.cluster.planning import Wish
from ozymandias.cluster.state import LocalCluster, Processes
from ozymandias.problems import LOCAL_CLUSTER, NODE_NOT_FOUND, Problem, ProblemError

READY_SECONDS_MAX = 60.0
SUPERVISOR_SECONDS_MAX = 15.0
DOWN_SECONDS_MAX = 15.0
POLL_SECONDS = 0.05
FAILURES_MAX = 4  # a program that ended this often in a row will not come up
LOG_TAIL_LINES = 12

Say = Callable[[str], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Up:
    cluster: LocalCluster
    seconds: float
    was_running: bool = False
    was_stale: bool = False  # it was there, stopped by a power cut, and was brought back


def require_root() -> None:
    if os.geteuid() != 0:
        raise ProblemError(
            LOCAL_CLUSTER(
                "A local cluster runs real pods with networks and volumes, which takes root.",
                hint="Run the same command with sudo.",
            )
        )


# Up -----------------------------------------------------------------------------------------------


def up(wish: Wish, say: Say) -> Up:
    """Make the cluster, or bring it back, or find it running."""
    planning.check(wish)
    require_root()
    programs.require_programs()
    started = time.monotonic()
    if not (wish.state_dir / "cluster.json").exists() and not state.is_blank(wish.state_dir):
        raise ProblemError(
            LOCAL_CLUSTER(
                f"{wish.state_dir} holds other things than a cluster's state.",
                hint="Choose an empty or a new directory with --state-dir.",
            )
        )
    with state.locked(wish.state_dir):
        cluster = state.load(wish.state_dir)
        if cluster is not None and reach.is_supervised(cluster):
            _wait_ready(cluster)
            cluster = _came_up(cluster)
            return Up(cluster=cluster, seconds=time.monotonic() - started, was_running=True)
        stale = cluster is not None and cluster.was_ready
        try:
            if cluster is not None and stale:
                say(f"Bringing back cluster {cluster.id}, found in {wish.state_dir}")
                cluster = planning.refreshed(cluster)
            else:
                if cluster is not None:  # an attempt that never became ready
                    _remove_all(cluster)
                    wish.state_dir.mkdir(parents=True, exist_ok=True, mode=0o700)
                cluster = planning.plan(wish)
            _start(cluster)
            _wait_ready(cluster)
            cluster = _came_up(cluster)
        except BaseException:
            with undisturbed():
                _undo(wish.state_dir, keep_data=stale)
            raise
    return Up(cluster=cluster, seconds=time.monotonic() - started, was_stale=stale)


def _came_up(cluster: LocalCluster) -> LocalCluster:
    """Remember it: from now on its data are worth keeping."""
    fresh = replace(state.load(cluster.state_dir) or cluster, was_ready=True)
    fresh.save()
    return fresh


def _start(cluster: LocalCluster) -> None:
    """The supervisor, in a session of its own: it outlives this command and its terminal."""
    programs.write_settings(cluster)
    with (cluster.logs / "supervisor.log").open("ab") as log:
        process = subprocess.Popen(
            [sys.executable, "-P", "-m", "ozymandias.cluster.supervisor", str(cluster.state_dir)],
            env=programs.base_environment(),
            cwd="/",
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
        )
    # Recorded by us first: an interruption must find it even before it can write anything itself.
    identity = state.ProcessId.of(process.pid)
    deadline = time.monotonic() + SUPERVISOR_SECONDS_MAX
    while not reach.is_supervised(cluster):
        if process.poll() is not None or time.monotonic() > deadline:
            if identity is not None:
                state.end({"supervisor": identity}, grace_seconds=1.0)
            raise ProblemError(_failed(cluster, "supervisor", "The supervisor did not start"))
        time.sleep(POLL_SECONDS / 5)


def _wait_ready(cluster: LocalCluster) -> None:
    """Until all nodes are members, ingress and DNS answer. A program that keeps dying ends it."""
    wanted = {node.name for node in cluster.nodes if not node.killed}
    deadline = time.monotonic() + READY_SECONDS_MAX
    waiting: dict[str, Callable[[], bool]] = {
        f"node {name}": lambda name=name: reach.is_node_ready(cluster, name)  # type: ignore[misc]
        for name in sorted(wanted)
    }
    waiting |= {
        "ingress": lambda: reach.answers(f"{cluster.ingress}/"),
        "dns": lambda: reach.dns_answers("127.0.0.1", cluster.dns_port, "ready.ozy.internal"),
        "membership": lambda: wanted <= {row["name"] for row in reach.nodes(cluster)},
    }
    while waiting:
        waiting = {what: is_ready for what, is_ready in waiting.items() if not is_ready()}
        if not waiting:
            return
        _raise_if_hopeless(cluster)
        if time.monotonic() > deadline:
            what = next(iter(waiting))
            program = what.removeprefix("node ")
            text = f"Not ready after {READY_SECONDS_MAX:.0f} s: {', '.join(waiting)}"
            raise ProblemError(_failed(cluster, program, text))
        time.sleep(POLL_SECONDS)


def _raise_if_hopeless(cluster: LocalCluster, only: str = "") -> None:
    try:
        status = reach.ask_supervisor(cluster, do="status")
    except OSError as error:
        raise ProblemError(_failed(cluster, "supervisor", f"No supervisor: {error}")) from error
    for program in status["programs"]:
        name = program["name"]
        if only in ("", name) and program["failures"] >= FAILURES_MAX:
            text = f"{name} ended {program['failures']} times in a row: {program['last_exit']}"
            raise ProblemError(_failed(cluster, name, text))


def _failed(cluster: LocalCluster, program: str, text: str) -> Problem:
    """With the end of the log in it: the directory will be gone when it is read."""
    try:
        log = (cluster.logs / f"{program}.log").read_text(errors="replace")
    except OSError:
        log = ""
    tail = [line[:300] for line in log.splitlines()[-LOG_TAIL_LINES:]]
    hint = "`ozy doctor` says what this machine lacks."
    if "address already in use" in log.lower():
        hint = "A port is taken by another program; `ss -ltnup` shows by which. Then try again."
    return LOCAL_CLUSTER(f"{text}.", hint=hint, program=program, log=tail)


def _undo(state_dir: Path, *, keep_data: bool) -> None:
    """After a failed or interrupted `up`."""
    cluster = state.load(state_dir)
    if cluster is not None:
        _stop_programs(cluster)
    if cluster is not None and not keep_data:
        _remove_all(cluster)
    elif cluster is None:
        shutil.rmtree(state_dir)  # nothing was there before, nor came to be
        _remove_if_empty(state.RUN_BASE)


@contextmanager
def undisturbed() -> Iterator[None]:
    """Cleaning up is not stopped half way by a second Ctrl-C."""
    numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    former = {number: signal.signal(number, signal.SIG_IGN) for number in numbers}
    try:
        yield
    finally:
        for number, handler in former.items():
            signal.signal(number, handler)


# Down ---------------------------------------------------------------------------------------------


def down(state_dir: Path) -> LocalCluster | None:
    """Remove everything the cluster made; None when there is none."""
    require_root()
    if not (state_dir / "cluster.json").exists():
        if state.is_blank(state_dir):  # an `up` was killed before it had written anything down
            shutil.rmtree(state_dir, ignore_errors=True)
        return None
    with state.locked(state_dir):
        cluster = state.load(state_dir)
        if cluster is not None:
            _stop_programs(cluster)
            _remove_all(cluster)
    return cluster


def _stop_programs(cluster: LocalCluster) -> None:
    """By the supervisor if it answers; then whoever is left of those it wrote down."""
    try:
        reach.ask_supervisor(cluster, do="down")
        deadline = time.monotonic() + DOWN_SECONDS_MAX
        while cluster.supervisor_socket.exists() and time.monotonic() < deadline:
            time.sleep(POLL_SECONDS / 5)
    except OSError:
        pass
    supervisors = {f"supervisor {p.pid}": p for p in _supervisors(cluster)}
    state.end(supervisors, grace_seconds=DOWN_SECONDS_MAX)
    state.end(Processes.load(cluster.state_dir).alive(), grace_seconds=3.0)


def _supervisors(cluster: LocalCluster) -> list[state.ProcessId]:
    """Found by their command line, which names the state directory: also one just started."""
    wanted = ["-m", "ozymandias.cluster.supervisor", str(cluster.state_dir)]
    found = []
    for directory in Path("/proc").iterdir():
        if not directory.name.isdigit():
            continue
        try:
            arguments = (directory / "cmdline").read_bytes().decode().split("\0")
        except (OSError, UnicodeDecodeError):
            continue
        if arguments[-4:-1] == wanted and (process := state.ProcessId.of(int(directory.name))):
            found.append(process)
    return found


def _remove_all(cluster: LocalCluster) -> None:
    """The state directory goes last: as long as it is there, `down` can be tried again."""
    remains.remove(cluster)
    shutil.rmtree(cluster.run_dir, ignore_errors=True)
    _remove_if_empty(state.RUN_BASE)
    shutil.rmtree(cluster.state_dir)
    if cluster.state_dir == state.DEFAULT_STATE_DIR:
        _remove_if_empty(cluster.state_dir.parent)


def _remove_if_empty(directory: Path) -> None:
    try:
        directory.rmdir()
    except OSError:
        pass  # another cluster's things are there


# Nodes --------------------------------------------------------------------------------------------


def kill_node(state_dir: Path, name: str) -> int:
    """As a power cut would; returns how many pods went with it."""
    cluster = _running(state_dir, name)
    answer = reach.ask_supervisor(cluster, timeout=60.0, do="kill", node=name)
    if not answer["was_running"]:
        raise ProblemError(
            LOCAL_CLUSTER(
                f"Node {name} is not running.", hint=f"`ozy node start {name}` brings it back."
            )
        )
    return int(answer["pods"])


def start_node(state_dir: Path, name: str) -> float:
    """Bring a killed node back and wait until it is ready; returns the seconds it took."""
    cluster = _running(state_dir, name)
    started = time.monotonic()
    reach.ask_supervisor(cluster, do="start", node=name)
    while not (
        reach.is_node_ready(cluster, name)
        and name in {row["name"] for row in reach.nodes(cluster) if row["state"] == "ready"}
    ):
        _raise_if_hopeless(cluster, only=name)
        if time.monotonic() - started > READY_SECONDS_MAX:
            text = f"Node {name} is not ready after {READY_SECONDS_MAX:.0f} s"
            raise ProblemError(_failed(cluster, name, text))
        time.sleep(POLL_SECONDS)
    return time.monotonic() - started


def _running(state_dir: Path, name: str) -> LocalCluster:
    require_root()
    cluster = state.load(state_dir)
    if cluster is None or not reach.is_supervised(cluster):
        raise ProblemError(
            LOCAL_CLUSTER(
                f"No local cluster runs in {state_dir}.",
                hint="`ozy up` starts one. Nodes of other clusters can't be killed from here.",
            )
        )
    if cluster.node(name) is None:
        known = ", ".join(node.name for node in cluster.nodes)
        raise ProblemError(
            NODE_NOT_FOUND(f"There is no node {name!r}.", hint=f"Nodes: {known}.", node=name)
        )
    return cluster
