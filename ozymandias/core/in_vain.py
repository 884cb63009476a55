"""What a job file names in vain: labels that no node has, and jobs that are not there.

Preferences never block, so a misspelt one would be ignored in silence: nothing is refused, and the
instances are only not where they were wanted. So would be a misspelt job to keep apart from, also
where that is required: it may come later, and is no reason to refuse. Here it is put in words, for
`ozy plan` and `ozy submit`. It hangs on names and labels alone, and only on nodes that may be the
job's at all: what neighbours and room make of a wish changes by the hour, and is told by
`core/drift.py`.
"""

from collections.abc import Iterator, Mapping, Sequence
from difflib import get_close_matches

from ozymandias.core.labels import unmet
from ozymandias.core.rules import label_demands
from ozymandias.model.job import Job, JobKey, LabelRule, LabelTest
from ozymandias.model.labels import matches, spelled
from ozymandias.model.record import replace
from ozymandias.model.snapshot import Snapshot

ALIKE_MAX = 3  # labels, or values of one, that may have been meant
# To guess what was meant is the costly part: so many are compared, of so many preferences.
KNOWN_MAX = 200
GUESSES_MAX = 10

Labels = Mapping[str, str]


def in_vain(snapshot: Snapshot, job: Job) -> tuple[str, ...]:
    """A sentence for each thing that is asked for and makes no difference between nodes."""
    return tuple(dict.fromkeys((*_labels_in_vain(snapshot, job), *_jobs_in_vain(snapshot, job))))


def _jobs_in_vain(snapshot: Snapshot, job: Job) -> Iterator[str]:
    """Whom it would be near to or is to be apart from, and that is not there, or not for long.

    To be near somebody is no note where it is required: that is a problem.
    """
    asked = job.placement
    wished = [(f"be near {one.job}", one.job) for one in asked.near if one.weight]
    wished += [(f"be apart from {one.job}", one.job) for one in asked.apart]
    for number, (wish, key) in enumerate(wished):
        record = snapshot.jobs.get(key)
        if key == job.key or (record and not record.head.deleting):
            continue
        what = f"there is no job {key}, so to {wish} changes nothing until it comes"
        alike = jobs_alike(snapshot, key, job.key) if number < GUESSES_MAX else ()
        yield what + _there_is(alike)


def jobs_alike(snapshot: Snapshot, key: JobKey, but: JobKey | None = None) -> Sequence[str]:
    """Jobs that may have been meant: those of that name elsewhere, or of one like it."""
    known = [k for k, r in snapshot.jobs.items() if k != but and not r.head.deleting]
    elsewhere = sorted(str(k) for k in known if k.name == key.name)
    # By the names alone: those of one namespace are alike in that already.
    here = {str(k.name): str(k) for k in known if k.namespace == key.namespace}
    return elsewhere[:ALIKE_MAX] or [here[name] for name in _alike(key.name, set(here))]


def _labels_in_vain(snapshot: Snapshot, job: Job) -> Sequence[str]:
    asked = job.placement
    if not (asked.prefer or asked.spread):
        return ()
    every = [node.ledger.all_labels for node in snapshot.nodes.values()]
    demands = label_demands(snapshot.settings, job)
    allowed = [labels for labels in every if any(unmet(d, labels) is None for d in demands)]
    if not allowed:
        return ()  # no node may have it, which is a problem, and told as such
    nobody = "no node" if len(allowed) == len(every) else "no node that it may be on"
    return tuple(_told(job, allowed, nobody))


def _told(job: Job, nodes: Sequence[Labels], nobody: str) -> Iterator[str]:
    there = {label for labels in nodes for label in labels}
    spread = job.placement.spread
    if spread and spread not in there:
        what = f"{nobody} has a label {spread}, so spread has nothing to spread over"
        yield what + _there_is(_alike(spread, there))
    for number, rule in enumerate(job.placement.prefer):
        alike: Sequence[str] = ()
        if rule.label not in there:
            # Also of `!=`, which holds where the label is missing: on every node, then.
            what = (
                f"{nobody} has a label {rule.label}, so to prefer {spelled(rule)} changes nothing"
            )
            alike = _alike(rule.label, there) if number < GUESSES_MAX else ()
        elif not any(matches(rule, labels) for labels in nodes):
            what = f"{nobody} has {spelled(rule)}, so to prefer it changes nothing"
            alike = _values_alike(rule, nodes) if number < GUESSES_MAX else ()
        else:
            continue
        yield what + _there_is(alike)


def _values_alike(rule: LabelRule, nodes: Sequence[Labels]) -> list[str]:
    """Rules that some node has, and that differ from this one by a slip of the pen."""
    if rule.test not in (LabelTest.EQUAL, LabelTest.IN):
        return []
    values = {labels[rule.label] for labels in nodes if rule.label in labels}
    asked = rule.values[:ALIKE_MAX]
    found = dict.fromkeys(value for word in asked for value in _alike(word, values))
    return [
        spelled(replace(rule, test=LabelTest.EQUAL, values=(value,)))
        for value in list(found)[:ALIKE_MAX]
    ]


def _alike(word: str, known: set[str]) -> list[str]:
    """Those that may have been meant, the most alike first; capitals are no difference."""
    folded = {one.casefold(): one for one in sorted(known)[:KNOWN_MAX]}
    found = get_close_matches(word.casefold(), folded, n=ALIKE_MAX)
    return [folded[one] for one in found]


def _there_is(alike: Sequence[str]) -> str:
    return f"; there is: {', '.join(alike)}" if alike else ""
