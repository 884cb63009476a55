"""S8: where a job's own rules, and those of others, let an instance be; from ground truth.

    S8  rules  what is placed somewhere has the labels it requires there, is near and apart as it
               and its neighbours require, is in its namespace's pool, and at home or away as its
               burst says; no node gets more than `max_per_node`; at the revision that placed it

Rules count when an instance is placed: labels and neighbours may change afterwards. Each instance
is judged by its own version, as it was placed by that, and limits count those alike: of others a
rollout leaves some beside the new ones for a while. Nothing of `core/rules.py` is asked.
"""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet

from ozymandias.model.instance import Assigned, Assignment
from ozymandias.model.job import Job, JobKey, JobKind, LabelRule, LabelTest
from ozymandias.model.node import NodeName
from ozymandias.sim.truth import LIVE, Change, Truth


def check_rules(
    truth: Truth, change: Change, tended: AbstractSet[NodeName] = frozenset()
) -> list[str]:
    """Everything that came to be somewhere in this revision.

    Of nodes that are ``tended`` just now, labels may have come and gone within it.
    """
    if truth.unreadable:
        return []  # a rule that can't be read can't be kept
    found: list[str] = []
    for (node, job), versions in sorted(change.placed.items()):
        for number in sorted(versions):
            version = truth.versions.get((job, number))
            if version is not None:
                found += (
                    f"S8 {job} was placed on {node}{why}"
                    for why in _broken(truth, change, node, version.job, number, node in tended)
                )
    return found


def _broken(
    truth: Truth, change: Change, node: NodeName, spec: Job, number: int, is_tended: bool
) -> Iterator[str]:
    before, after = change.ledgers.get(node), truth.ledgers.get(node)
    labels = [ledger.all_labels for ledger in (before, after) if ledger and not is_tended]
    if labels and not any(has_all(spec.placement.require, found) for found in labels):
        yield ", which lacks a label that it requires"
    pools = [p.require for p in truth.settings.pools if p.namespace == spec.namespace and p.is_hard]
    if (
        labels
        and pools
        and not change.settles
        and not any(has_all(r, f) for r in pools for f in labels)
    ):
        yield ", which is not in its namespace's pool"
    if spec.kind is JobKind.SYSTEM:
        return  # it belongs to nodes, whoever is there
    here = truth.assignments.get(node, {})
    for other in spec.placement.near:
        if not other.weight and other.job not in here and (node, other.job) not in change.left:
            yield f", where no {other.job} is to be near to"
    yield from (
        f", where {other} is to be apart from"
        for other in rivals(truth, node, spec)
        if not _is_later(truth, change, node, other)
    )
    alike = _alike(truth, spec.key, number)
    here_now = sum(a.node == node for a in alike)
    if 0 < spec.placement.max_per_node < here_now:
        yield f", which has {here_now} of it, and {spec.placement.max_per_node} are the most"
    yield from _burst(truth, change, node, spec)
    yield from _home(truth, change, node, spec, alike)


def _alike(truth: Truth, job: JobKey, number: int) -> list[Assigned]:
    """The live ones of a version, without those that a restart replaces."""
    live = [a for a in truth.assigned(job) if a.state in LIVE and a.version == number]
    newest = max((a.generation for a in live), default=0)
    return [a for a in live if a.generation == newest]


def has_all(rules: tuple[LabelRule, ...], labels: Mapping[str, str]) -> bool:
    """Rules of a simulation ask for equal labels, and nothing more difficult."""
    return all(
        labels.get(rule.label) in rule.values for rule in rules if rule.test is LabelTest.EQUAL
    )


def rivals(truth: Truth, node: NodeName, spec: Job) -> list[JobKey]:
    """The jobs that live on a node and have to be apart from this one, by either's rules."""
    own = {n.job for n in spec.placement.apart if not n.weight}
    return [
        job
        for job, assignment in sorted(truth.assignments.get(node, {}).items())
        if (versions := live_versions(assignment))
        and (job in own or any(_is_wary(truth, job, number, spec.key) for number in versions))
    ]


def _is_later(truth: Truth, change: Change, node: NodeName, job: JobKey) -> bool:
    """Whether a system job may have come right after, in the same revision: it asks nobody."""
    versions = [truth.versions.get((job, v)) for v in change.placed.get((node, job), ())]
    return any(version and version.job.kind is JobKind.SYSTEM for version in versions)


def live_versions(assignment: Assignment) -> set[int]:
    return {group.version for group in assignment.groups if group.state in LIVE}


def _is_wary(truth: Truth, job: JobKey, number: int, of: JobKey) -> bool:
    version = truth.versions.get((job, number))
    return version is not None and any(
        n.job == of and not n.weight for n in version.job.placement.apart
    )


def _burst(truth: Truth, change: Change, node: NodeName, spec: Job) -> Iterator[str]:
    """On a burst's node only above `after` live ones; a replacement may stop what it replaces."""
    burst = spec.placement.burst
    if burst is None or node not in burst.nodes:
        return
    live = len(truth.live(spec.key))
    if max(live - 1, change.live_before.get(spec.key, 0)) < burst.after:
        yield f", though {live} are live and the first {burst.after} stay at home"


def _home(
    truth: Truth, change: Change, node: NodeName, spec: Job, alike: Sequence[Assigned]
) -> Iterator[str]:
    """At home no more than `after`, without those that are about to leave: drained, moved, lost."""
    burst, head = spec.placement.burst, truth.heads.get(spec.key)
    if burst is None or node in burst.nodes:
        return
    move = head.move if head else None
    leaving = {(move.node, move.slot)} if move and not move.given_up else set()
    home = [
        a
        for a in alike
        if a.node not in burst.nodes
        and (a.node, a.slot) not in leaving
        and a.node in truth.presences
        and not any(
            ledger and ledger.drain
            for ledger in (truth.ledgers.get(a.node), change.ledgers.get(a.node))
        )
    ]
    if len(home) > burst.after:
        yield f", though {len(home)} are at home and only {burst.after} of them stay there"


def allows(truth: Truth, node: NodeName, spec: Job, there: Counter[NodeName]) -> bool:
    """Whether the rules let one more be on a node now, where ``there`` are."""
    labels, asked = truth.ledgers[node].all_labels, spec.placement
    pools = [p.require for p in truth.settings.pools if p.namespace == spec.namespace and p.is_hard]
    here = truth.assignments.get(node, {})
    lives = {job for job, assignment in here.items() if live_versions(assignment)}
    if not has_all(asked.require, labels):
        return False
    if pools and not any(has_all(rules, labels) for rules in pools):
        return False
    if spec.kind is JobKind.SYSTEM:
        return True
    if any(not n.weight and n.job not in lives for n in asked.near) or rivals(truth, node, spec):
        return False
    if 0 < asked.max_per_node <= there[node]:
        return False
    if asked.burst is None:
        return True
    if node in asked.burst.nodes:
        return there.total() >= asked.burst.after
    home = sum(n for name, n in there.items() if name not in asked.burst.nodes)
    return home < asked.burst.after
