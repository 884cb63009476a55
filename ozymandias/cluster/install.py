"""`ozy install`: what a host needs to be a node, as a list of steps; then the steps, one by one.

`plan` says what is to be done and knows nothing of what is there; `carry_out` looks, does what is
missing and says so, or only says so. Doing it again changes nothing. Settings, token and state are
never overwritten and never removed: they are the host's, not ours.

Of a new API token the host keeps the hash; the token itself is handed to whoever installs, once.

With another root directory (an image, a package, a test) files are written there and nothing of
the running host is touched.
"""

import grp
import os
import shutil
import subprocess
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from ozymandias.cluster import units
from ozymandias.problems import LOCAL_CLUSTER, ProblemError
from ozymandias.runtime import containers_conf
from ozymandias.store.tokens import hashed, make_token

GROUP = "ozymandias"
SETTINGS = Path("etc/ozymandias")
STATE = Path("var/lib/ozymandias")
COMMAND_SECONDS_MAX = 60.0
# A stock Debian 12 or later: what an image or a package is made for.
STOCK = containers_conf.HostFacts(
    cgroups="v2",
    has_systemd=True,
    can_raise_limits=True,
    open_files_max=-1,
    processes_max=-1,
    runtimes=("crun", "runc"),
)

Outcome = Literal["done", "unchanged", "kept", "would", "skipped", "failed"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Directory:
    path: Path
    mode: int
    group: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class File:
    path: Path
    text: str
    mode: int = 0o644
    group: str = ""
    only_if_absent: bool = False
    secret: str = field(default="", repr=False)  # what the text is a hash of


@dataclass(frozen=True, slots=True, kw_only=True)
class Removal:
    path: Path


@dataclass(frozen=True, slots=True, kw_only=True)
class Command:
    words: tuple[str, ...]
    reason: str
    may_fail: bool = False


Step = Directory | File | Removal | Command


@dataclass(frozen=True, slots=True, kw_only=True)
class Done:
    """One line of the report."""

    what: str
    outcome: Outcome
    detail: str = ""
    secret: str = field(default="", repr=False)  # of a file that was written: known here only

    def document(self) -> dict[str, Any]:
        return {"what": self.what, "outcome": self.outcome, "detail": self.detail}


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """Where to install to, and from where the programs run."""

    root: Path = Path("/")
    bin_dir: Path
    start: bool = False

    @property
    def is_this_host(self) -> bool:
        return self.root == Path("/")

    @property
    def has_systemd(self) -> bool:
        return self.is_this_host and Path("/run/systemd/system").is_dir()


# Deciding -----------------------------------------------------------------------------------------


def plan(target: Target) -> Iterator[Step]:
    if target.is_this_host:
        yield _group_command()
    facts = containers_conf.gather() if target.is_this_host else STOCK
    yield Directory(path=SETTINGS, mode=0o750, group=GROUP)
    yield Directory(path=STATE, mode=0o700)
    yield File(
        path=SETTINGS / "ozymandias.toml",
        text=units.template("ozymandias.toml"),
        mode=0o640,
        group=GROUP,
        only_if_absent=True,
    )
    if target.is_this_host:  # a token that came with an image would be known to many
        token = make_token()
        yield File(
            path=SETTINGS / "tokens",
            text=f"{hashed(token)}\n",
            mode=0o600,
            only_if_absent=True,
            secret=token,
        )
    yield File(
        path=SETTINGS / "containers.conf",
        text=containers_conf.render(containers_conf.decide(facts)),
    )
    for unit in units.units(target.bin_dir):
        yield File(path=unit.path, text=unit.text)
    if target.has_systemd:
        yield Command(words=("systemctl", "daemon-reload"), reason="so that it reads the units")
        now = ("--now", "--no-block") if target.start else ()
        yield Command(
            words=("systemctl", "enable", *now, "podman.socket", *units.SERVICES),
            reason="so that they start with the host",
        )


def _group_command() -> Command:
    reason = "who may read the settings beside root"
    return Command(words=("groupadd", "--system", "--force", GROUP), reason=reason)


def plan_removal(target: Target) -> Iterator[Step]:
    """Units and what only they need; settings, token, state and pods stay."""
    if target.has_systemd:
        yield Command(
            words=("systemctl", "disable", "--now", *units.SERVICES),
            reason="pods keep running",
            may_fail=True,
        )
    for unit in units.units(target.bin_dir):
        yield Removal(path=unit.path)
    yield Removal(path=SETTINGS / "containers.conf")
    if target.has_systemd:
        yield Command(words=("systemctl", "daemon-reload"), reason="so that it forgets the units")


# Doing --------------------------------------------------------------------------------------------


def require_root(target: Target) -> None:
    if target.is_this_host and os.geteuid() != 0:
        raise ProblemError(
            LOCAL_CLUSTER(
                "Installing units and settings on this host takes root.",
                hint="Run it with sudo; --dry-run shows what it would do, --root DIR does it"
                " elsewhere.",
            )
        )


def carry_out(steps: Sequence[Step], root: Path, *, dry_run: bool = False) -> Iterator[Done]:
    """Step by step; the first one that fails is the last."""
    for step in steps:
        try:
            done = _carry_out(step, root, dry_run)
        except OSError as error:
            done = Done(what=_name(step, root), outcome="failed", detail=str(error))
        yield done
        if done.outcome == "failed":
            return


def _name(step: Step, root: Path) -> str:
    return " ".join(step.words) if isinstance(step, Command) else str(root / step.path)


def _carry_out(step: Step, root: Path, dry_run: bool) -> Done:
    match step:
        case Directory():
            return _make_directory(step, root, dry_run)
        case File():
            return _write(step, root, dry_run)
        case Removal():
            return _remove(step, root, dry_run)
        case Command():
            return _run(step, root, dry_run)


def _make_directory(step: Directory, root: Path, dry_run: bool) -> Done:
    path = root / step.path
    if path.is_dir():
        return Done(what=str(path), outcome="unchanged")
    if not dry_run:
        path.mkdir(parents=True, exist_ok=True)
        own(path, step.mode, step.group, root)
    return Done(what=str(path), outcome="would" if dry_run else "done", detail="directory")


def _write(step: File, root: Path, dry_run: bool) -> Done:
    path = root / step.path
    if path.exists():
        if step.only_if_absent:
            return Done(what=str(path), outcome="kept", detail="it is there and stays as it is")
        if path.read_text() == step.text:
            return Done(what=str(path), outcome="unchanged")
    if not dry_run:
        path.parent.mkdir(parents=True, exist_ok=True)
        draft = path.with_name(f".{path.name}.new")
        descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        with os.fdopen(descriptor, "w") as stream:
            stream.write(step.text)
        own(draft, step.mode, step.group, root)
        draft.replace(path)
        return Done(what=str(path), outcome="done", detail="written", secret=step.secret)
    return Done(what=str(path), outcome="would", detail="written")


def own(path: Path, mode: int, group: str, root: Path) -> None:
    path.chmod(mode)
    if group and root == Path("/"):
        os.chown(path, 0, grp.getgrnam(group).gr_gid)


def _remove(step: Removal, root: Path, dry_run: bool) -> Done:
    path = root / step.path
    if not path.exists():
        return Done(what=str(path), outcome="unchanged", detail="it is not there")
    if not dry_run:
        path.unlink()
        if path.parent.name.endswith(".service.d") and not any(path.parent.iterdir()):
            path.parent.rmdir()
    return Done(what=str(path), outcome="would" if dry_run else "done", detail="removed")


def _run(step: Command, root: Path, dry_run: bool) -> Done:
    what = _name(step, root)
    if dry_run:
        return Done(what=what, outcome="would", detail=step.reason)
    program = shutil.which(step.words[0], path=f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin")
    if program is None:
        return Done(what=what, outcome="failed", detail=f"{step.words[0]} is not installed")
    try:
        done = subprocess.run(
            [program, *step.words[1:]],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=COMMAND_SECONDS_MAX,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return Done(what=what, outcome="failed", detail="it does not end")
    if done.returncode == 0:
        return Done(what=what, outcome="done", detail=step.reason)
    said = (done.stderr.strip() or f"exit code {done.returncode}").splitlines()[-1]
    return Done(what=what, outcome="skipped" if step.may_fail else "failed", detail=said)
