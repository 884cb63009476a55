"""What a run tells: the same text for the terminal and, as markdown, for a file.

Failed requests are attributed: to the ingress' own host, when a fault hit it; to other faults that
held then, or had ended a moment before; else to nothing, which is a violation.
"""

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field

from tests.chaos.load import Call
from tests.chaos.nemesis import Happened
from tests.chaos.processes import Container
from tests.cluster.hosts.traffic import Failure

AFTER_SECONDS = 15.0  # lease, and what it takes to start elsewhere
EXAMPLES_MAX = 20
DEADLY_SECONDS = 20.0  # a pod that was hit may first fail some probes
# Faults that end containers of their host; all others must not.
DEADLY = frozenset(
    {
        *("power-cut", "power-cut-of-all", "containers-killed", "conmon-killed"),
        "pod-network-removed",
    }
)
SETTLE_SECONDS = 2.0  # a request that fails now may have been begun before the fault


@dataclass(slots=True, kw_only=True)
class Outcome:
    seed: int
    hosts: int
    began: float
    commit: str
    minutes: float
    timeline: list[Happened] = field(default_factory=list)
    calls: list[Call] = field(default_factory=list)
    requests: int = 0
    failures: list[Failure] = field(default_factory=list)
    violations: list[tuple[float, str]] = field(default_factory=list)
    converged_seconds: float = float("inf")
    converged_last: str = ""
    notes: list[str] = field(default_factory=list)


def attribute(failure: Failure, timeline: Iterable[Happened]) -> str:
    """The kind of fault that explains a failed request, its own host's before others'."""
    ended = failure.began + failure.seconds
    near = [
        one
        for one in timeline
        if one.begin <= ended + SETTLE_SECONDS
        and (not one.heal or failure.began <= one.heal + AFTER_SECONDS)
    ]
    own = [one for one in near if failure.ingress in one.ingresses]
    if own:
        return f"own host: {own[-1].kind}"
    return near[-1].kind if near else ""


def unjust(
    ended: Iterable[tuple[float, Container]], timeline: Iterable[Happened]
) -> list[tuple[float, Container]]:
    """Containers that ended though they were to run on, and no fault on their host did it (S7).

    Exclusive ones end with their node's lease, and the hog by what it is.
    """
    listed = list(timeline)
    return [
        (at, container)
        for at, container in ended
        if not container.instance.job.name.endswith(("-only", "hog"))
        and not any(
            one.kind in DEADLY
            and one.begin - 1 <= at <= (one.heal or at) + DEADLY_SECONDS
            and (one.host == container.node or one.kind == "power-cut-of-all")
            for one in listed
        )
    ]


def _table(head: list[str], rows: Iterable[Iterable[object]]) -> list[str]:
    lines = [f"| {' | '.join(head)} |", f"|{' --- |' * len(head)}"]
    return lines + [f"| {' | '.join(str(cell) for cell in row)} |" for row in rows]


def summary(outcome: Outcome) -> list[str]:
    kinds = Counter(one.kind for one in outcome.timeline)
    states = Counter(call.state for call in outcome.calls)
    slowest = max((call.seconds for call in outcome.calls), default=0.0)
    blamed = Counter(attribute(f, outcome.timeline) for f in outcome.failures)
    own = sum(n for why, n in blamed.items() if why.startswith("own host"))
    return [
        f"seed {outcome.seed}, {outcome.hosts} hosts, {outcome.minutes:g} minutes of faults,"
        f" commit {outcome.commit}",
        f"faults: {len(outcome.timeline)} of {len(kinds)} kinds",
        f"calls of users: {len(outcome.calls)}; done {states['done']}, refused"
        f" {states['refused']}, outcome never known {states['unknown']}; slowest {slowest:.1f} s",
        f"requests: {outcome.requests}, failed {len(outcome.failures)}: {own} at an ingress whose"
        f" own host was hit, {len(outcome.failures) - own - blamed['']} near another fault,"
        f" {blamed['']} without one",
        f"at rest {outcome.converged_seconds:.1f} s after the last fault healed",
        f"violations: {len(outcome.violations)}",
    ]


def render(outcome: Outcome) -> str:
    """Markdown."""
    began = outcome.began
    lines = ["# Chaos on real hosts", "", *(f"- {line}" for line in summary(outcome)), ""]
    lines += ["## Violations", ""]
    lines += [f"- {at - began:.1f} s: {what}" for at, what in outcome.violations] or ["None."]
    lines += ["", "## Failed requests", ""]
    blamed = Counter(attribute(f, outcome.timeline) for f in outcome.failures)
    rows = [(why or "nothing", count) for why, count in blamed.most_common()]
    lines += _table(["explained by", "requests"], rows) if rows else ["None."]
    others = [
        f"- {f.began - began:.1f} s, {f.ingress}, after {f.seconds:.1f} s: {f.text[:160]!r}"
        for f in outcome.failures
        if not attribute(f, outcome.timeline).startswith("own host")
    ]
    if others:
        lines += ["", "At an ingress whose own host was not hit:", "", *others[:EXAMPLES_MAX]]
    lines += ["", "## Timeline", ""]
    lines += _table(
        ["began", "healed", "kind", "what"],
        [
            (
                f"{one.begin - began:.1f} s",
                f"{one.heal - began:.1f} s" if one.heal else "-",
                one.kind,
                one.what + (f" (healed late: {one.trouble.split(chr(10))[0]})" * bool(one.trouble)),
            )
            for one in outcome.timeline
        ],
    )
    if outcome.notes:
        lines += ["", "## Notes", "", *(f"- {note}" for note in outcome.notes)]
    return "\n".join(lines) + "\n"
