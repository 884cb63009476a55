"""A check and its verdict; who is examined; numbers that several examinations share."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

from ozymandias.model.units import counted

Verdict = Literal["ok", "warn", "fail"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    name: str
    verdict: Verdict
    detail: str
    remedy: str = ""

    def document(self) -> dict[str, Any]:
        return asdict(self)


@dataclass(frozen=True, slots=True, kw_only=True)
class Patient:
    """What is known about the cluster in use: from the CLI's context, or nothing."""

    endpoints: Sequence[str] = ()
    token: str = ""
    state_dir: Path | None = None  # of a cluster on this machine
    config_file: Path | None = None  # of a daemon on this host; the rest is not looked at then

    @property
    def is_here(self) -> bool:
        """This machine runs the cluster, or could be about to run one."""
        return self.state_dir is not None or not self.endpoints


def ok(name: str, detail: str) -> Check:
    return Check(name=name, verdict="ok", detail=detail)


def warn(name: str, detail: str, remedy: str) -> Check:
    return Check(name=name, verdict="warn", detail=detail, remedy=remedy)


def fail(name: str, detail: str, remedy: str) -> Check:
    return Check(name=name, verdict="fail", detail=detail, remedy=remedy)


def absent(name: str, package: str) -> Check:
    return fail(name, "not installed", f"apt-get install {package}")


def worst(checks: Sequence[Check]) -> Verdict:
    verdicts = {check.verdict for check in checks}
    return "fail" if "fail" in verdicts else "warn" if "warn" in verdicts else "ok"


def count(checks: Sequence[Check]) -> str:
    """The last line of the report."""
    numbers = {v: sum(check.verdict == v for check in checks) for v in ("ok", "warn", "fail")}
    return (
        f"{counted(len(checks), 'check')}: {numbers['ok']} ok,"
        f" {counted(numbers['warn'], 'warning')},"
        f" {counted(numbers['fail'], 'failure')}"
    )


def dotted(version: tuple[int, ...]) -> str:
    return ".".join(str(part) for part in version)
