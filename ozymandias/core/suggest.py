"""What would make a job fit. Each suggestion has been put to the scheduler and found to fit.

First what brings back what is missing: start a node, end its drain or its cordon. Then, for a job
that is refused, what whoever submits it could change at once (fewer, smaller, less particular), and
after that what an operator could do (label a node, add one). A job that is pending was accepted as
it is, so there it is the other way round: less is asked for last. Each is enough by itself.

Here it is held against rooms and rules alone, and in `core/advice.py` against others who could come
first: a `Trial` says how. That takes long, so there is a None among the suggestions wherever
whoever looks for them may do other things before the next is tried.
"""

from bisect import bisect_left
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain

from ozymandias.core.attempt import Attempt, why_closed
from ozymandias.core.newcomers import more_nodes, together
from ozymandias.core.rooms import Room, Rooms
from ozymandias.core.rules import label_demands, rules_of
from ozymandias.core.stepwise import Stepwise
from ozymandias.model.job import Autoscale, Job, Neighbour, PlacementRules, VolumeKind
from ozymandias.model.labels import labels_for
from ozymandias.model.node import Demand, Node, NodeName, millis_of
from ozymandias.model.record import replace
from ozymandias.model.snapshot import Snapshot
from ozymandias.model.units import counted, exact_size, format_cores, format_size
from ozymandias.problems import Suggestion

MEBIBYTE = 2**20
GIBIBYTE = 2**30
FINE_STEP = 16 * MEBIBYTE  # sizes below 1G are suggested in these steps, larger ones in coarse
COARSE_STEP = 64 * MEBIBYTE
CPU_STEP = 50  # thousandths of a core
# What asks for 1G does not start with 64M: less than one part in so many of what a program was
# given is advice to break it. Fewer instances are another matter, for each of them works.
USELESS_BELOW = 2
TRIES_MAX = 8  # of suggestions alike that are held against more than rooms and rules
WEIGHT = 10  # of what was required and would be preferred

Holds = Callable[[Suggestion], Stepwise[bool]]
Found = Iterator[Suggestion | None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Trial:
    """What suggestions are held against, beside rooms and rules."""

    holds: Holds
    changed: Attempt  # as it will be asked when the job is changed: its own instances make way
    ahead: tuple[int, ...]  # priorities from which others could be served before it
    is_pending: bool = False  # it was accepted as it is, and waits
    awaited: tuple[Attempt, ...] = ()  # of those that it has to be near to, and that wait too


def suggestions_for(attempt: Attempt, placeable: int) -> Iterator[Suggestion]:
    """As if there were nobody else."""
    return (found for found in suggesting(attempt, placeable) if found is not None)


def suggesting(attempt: Attempt, placeable: int, trial: Trial | None = None) -> Found:
    is_pending = trial is not None and trial.is_pending
    holds = trial.holds if trial else _fits_already
    changed = trial.changed if trial else attempt

    def first(candidates: Found) -> Found:
        tries = 0
        for candidate in candidates:
            if candidate is None:
                yield None
                continue
            if (yield from holds(candidate)):
                yield candidate
                return
            tries += 1
            if tries == TRIES_MAX:
                return

    def all_of(candidates: Found) -> Found:
        for candidate in candidates:
            if candidate is None or (yield from holds(candidate)):
                yield candidate

    ahead, awaited = (trial.ahead, trial.awaited) if trial else ((), ())

    def also(candidates: Callable[[Attempt], Found]) -> Found:
        """What gives it a place, or a place to whom it has to be near to, and by that to it."""
        yield from candidates(attempt)
        for other in awaited:
            yield from (_for_both(candidate, other) for candidate in candidates(other))

    def back() -> Found:
        yield from first(also(_started))
        yield from first(also(lambda one: _reopened(one, "undrain")))
        yield from first(also(lambda one: _reopened(one, "uncordon")))

    def more() -> Found:
        yield from first(also(_labelled))
        yield from first(more_nodes(attempt, placeable, ahead))
        for other in awaited:
            both = together(attempt, attempt.wanted - placeable, other)
            nodes = more_nodes(both, other.placeable(), ahead)
            yield from first(_for_both(candidate, other) for candidate in nodes)

    def less() -> Found:
        yield from first(_fewer_instances(attempt, placeable))
        if attempt.can_change_job:
            yield from _smaller(changed, holds)
            yield from first(_no_host_port(changed))
            yield from first(_more_per_node(changed))
            yield from all_of(_less_particular(changed))

    is_any = False
    for candidate in chain(back(), *((more(), less()) if is_pending else (less(), more()))):
        is_any = is_any or candidate is not None
        yield candidate
    if attempt.can_change_job and not is_any:
        yield from _smaller(changed, holds, is_last_resort=True)


def _fits_already(_: Suggestion) -> Stepwise[bool]:
    """It was found by rooms and rules, and no more is asked."""
    yield from ()
    return True


def _for_both(candidate: Suggestion | None, other: Attempt) -> Suggestion | None:
    if candidate is None:
        return None
    return replace(candidate, text=f"{candidate.text}: {other.key} would get a place as well")


def _fewer_instances(attempt: Attempt, placeable: int) -> Iterator[Suggestion]:
    if placeable <= attempt.kept or not replace(attempt, wanted=placeable).fits():
        return
    text = f"run {counted(placeable, 'instance')} instead of {attempt.wanted}"
    if rules := attempt.job.autoscale:
        yield from _smaller_pool(attempt, rules, placeable, text)
    else:
        yield Suggestion(text=text, change={"numInstances": placeable})


def _smaller_pool(
    attempt: Attempt, rules: Autoscale, placeable: int, text: str
) -> Iterator[Suggestion]:
    """A pool begins with a number within its bounds; once it is there, only they are the file's."""
    record = attempt.snapshot.jobs.get(attempt.key)
    if record and record.current and record.current.job.autoscale:
        if placeable >= rules.min:
            yield Suggestion(
                text=f"{text} at most (autoscale.max)", change={"autoscale.max": placeable}
            )
    elif placeable >= rules.min:
        yield Suggestion(text=text, change={"numInstances": placeable})
    elif attempt.wanted == rules.min:
        yield Suggestion(
            text=f"{text} at least (autoscale.min)", change={"autoscale.min": placeable}
        )


# Smaller ------------------------------------------------------------------------------------------


def _smaller(attempt: Attempt, holds: Holds, *, is_last_resort: bool = False) -> Found:
    """Smaller sizes that are still some use; as a last resort those that hardly are."""
    for less in (_less_memory, _less_disk, _less_cpu):
        yield from less(attempt, holds, is_last_resort)


def _of_use(sizes: Sequence[int], asked: int, is_last_resort: bool) -> Sequence[int]:
    """Of sizes that grow those that are some use to who asks for so much, or else the others."""
    cut = bisect_left(sizes, asked, key=lambda size: size * USELESS_BELOW)
    return sizes[:cut] if is_last_resort else sizes[cut:]


def _less_memory(attempt: Attempt, holds: Holds, is_last_resort: bool) -> Found:
    job, demand = attempt.job, attempt.demand
    largest = max(job.containers, key=lambda c: c.memory_bytes)
    others = demand.memory_bytes - largest.memory_bytes

    def with_memory(size: int) -> Demand:
        return replace(demand, memory_bytes=others + size)

    def worded(size: int) -> Suggestion:
        return Suggestion(
            text=f"give {largest.name} {exact_size(size)} of memory"
            f" instead of {format_size(largest.memory_bytes)}",
            change={f"containers.{largest.name}.memory": exact_size(size)},
        )

    sizes = _human_sizes(largest.memory_bytes)
    sizes = _of_use(sizes, largest.memory_bytes, is_last_resort)
    yield from _largest(sizes, lambda size: attempt.fits(with_memory(size)), worded, holds)


def _less_disk(attempt: Attempt, holds: Holds, is_last_resort: bool) -> Found:
    job, demand = attempt.job, attempt.demand
    volumes = [(v, c) for c in job.containers for v in c.volumes if v.kind is VolumeKind.LOCAL]
    if not volumes:
        return
    largest, container = max(volumes, key=lambda pair: pair[0].space_bytes)
    others = demand.disk_bytes - largest.space_bytes

    def with_disk(size: int) -> Demand:
        return replace(demand, disk_bytes=others + size)

    def worded(size: int) -> Suggestion:
        return Suggestion(
            text=f"give the volume {largest.path} of {container.name} {exact_size(size)}"
            f" instead of {format_size(largest.space_bytes)}",
            change={f"containers.{container.name}.volumes.{largest.path}.space": exact_size(size)},
        )

    sizes = _human_sizes(largest.space_bytes)
    sizes = _of_use(sizes, largest.space_bytes, is_last_resort)
    yield from _largest(sizes, lambda size: attempt.fits(with_disk(size)), worded, holds)


def _less_cpu(attempt: Attempt, holds: Holds, is_last_resort: bool) -> Found:
    job, demand = attempt.job, attempt.demand
    if not demand.cpu_millis:
        return
    largest = max(job.containers, key=lambda c: c.cpu or 0.0)
    millis = millis_of(largest.cpu or 0.0)
    others = demand.cpu_millis - millis

    def with_cores(size: int) -> Demand:
        return replace(demand, cpu_millis=others + size)

    def worded(size: int) -> Suggestion:
        return Suggestion(
            text=f"give {largest.name} {format_cores(size)} instead of {format_cores(millis)}",
            change={f"containers.{largest.name}.cpu": size / 1000},
        )

    sizes = _of_use(range(CPU_STEP, millis, CPU_STEP), millis, is_last_resort)
    yield from _largest(sizes, lambda size: attempt.fits(with_cores(size)), worded, holds)


def _human_sizes(below: int) -> Sequence[int]:
    """Sizes that people would write, smaller than this one: in fine steps, above 1G in coarse."""
    fine = range(FINE_STEP, min(below, GIBIBYTE + 1), FINE_STEP)
    return (*fine, *range(GIBIBYTE + COARSE_STEP, below, COARSE_STEP))


def _largest(
    sizes: Sequence[int],
    fits: Callable[[int], bool],
    worded: Callable[[int], Suggestion],
    holds: Holds,
) -> Found:
    """The largest of these sizes with which everything fits, if there is one.

    What fits by rooms is found out quickly, and mostly it holds; else smaller ones are looked for.
    """

    def by_rooms(size: int) -> Stepwise[bool]:
        yield
        return fits(size)

    size = yield from _largest_that_does(sizes, by_rooms)
    if size and not (yield from holds(worded(size))):
        smaller = sizes[: sizes.index(size)]
        size = yield from _largest_that_does(smaller, lambda size: holds(worded(size)))
    if size:
        yield worded(size)


def _largest_that_does(
    sizes: Sequence[int], does: Callable[[int], Stepwise[bool]]
) -> Stepwise[int]:
    """Of sizes that grow, 0 if there is none: by halves."""
    low, high = 0, len(sizes)
    while low < high:
        middle = (low + high + 1) // 2
        if (yield from does(sizes[middle - 1])):
            low = middle
        else:
            high = middle - 1
    return sizes[low - 1] if low else 0


# Less particular ----------------------------------------------------------------------------------


def _no_host_port(attempt: Attempt) -> Iterator[Suggestion]:
    ports = attempt.demand.host_ports
    if ports and attempt.fits(replace(attempt.demand, host_ports=())):
        names = ", ".join(map(str, ports))
        yield Suggestion(
            text=f"ask for no host port ({names}): pods have addresses of their own",
            change={"ports": "without host"},
        )


def _more_per_node(attempt: Attempt) -> Iterator[Suggestion]:
    asked = attempt.job.placement
    if not 0 < asked.max_per_node < attempt.wanted:
        return
    low, high = asked.max_per_node, attempt.wanted + 1  # low does not fit, high is none
    while low + 1 < high:
        middle = (low + high) // 2
        if _fits_limited(attempt, replace(asked, max_per_node=middle)):
            high = middle
        else:
            low = middle
    for limit in range(high, attempt.wanted + 1):
        yield Suggestion(
            text=f"allow {limit} on a node instead of {asked.max_per_node}",
            change={"placement.max_per_node": limit},
        )


def _less_particular(attempt: Attempt) -> Iterator[Suggestion]:
    """One thing that is required about other jobs would be preferred instead."""
    asked = attempt.job.placement
    for one in asked.near:
        softer = replace(asked, near=_softened(asked.near, one))
        if not one.weight and _fits_with(attempt, softer):
            yield _preferred("near", f"near {one.job}", one)
    for one in asked.apart:
        softer = replace(asked, apart=_softened(asked.apart, one))
        if not one.weight and _fits_with(attempt, softer):
            yield _preferred("apart", f"apart from {one.job}", one)
    if asked.burst and _fits_limited(attempt, replace(asked, burst=None)):
        yield Suggestion(text="leave out burst", change={"placement.burst": None})


def _softened(named: tuple[Neighbour, ...], one: Neighbour) -> tuple[Neighbour, ...]:
    return tuple(replace(n, weight=WEIGHT) if n is one else n for n in named)


def _preferred(field: str, words: str, one: Neighbour) -> Suggestion:
    return Suggestion(
        text=f"prefer to be {words} (weight: {WEIGHT}) instead of requiring it",
        change={f"placement.{field}": {"job": str(one.job), "weight": WEIGHT}},
    )


def _fits_limited(attempt: Attempt, asked: PlacementRules) -> bool:
    """With other limits, which make no other nodes eligible."""
    return attempt.fits(rules=replace(attempt.rules, asked=asked))


def _fits_with(attempt: Attempt, asked: PlacementRules) -> bool:
    job = replace(attempt.job, placement=asked)
    return attempt.fits(rules=rules_of(attempt.snapshot, job))


# Other nodes --------------------------------------------------------------------------------------


def _that_do(
    attempt: Attempt, rooms: Rooms, fits: Callable[[NodeName], bool]
) -> Iterator[NodeName | None]:
    """The nodes with which it fits, each by itself.

    Of thousands nearly all are alike: one that takes no more than another that was not enough is
    not tried.
    """
    burst = attempt.job.placement.burst
    too_few = {True: 0, False: 0}  # home, and what a burst goes to
    for name, room in rooms.items():
        is_away, number = burst is not None and name in burst.nodes, attempt.takes(room)
        if number <= too_few[is_away]:
            continue
        yield None
        if fits(name):
            yield name
        else:
            too_few[is_away] = number


def _with_one_of(attempt: Attempt, rooms: Rooms) -> Iterator[NodeName | None]:
    """The same, of rooms that are not there yet."""

    def fits(name: NodeName) -> bool:
        return attempt.fits(rooms=attempt.rooms | {name: rooms[name]})

    return _that_do(attempt, attempt.rules.eligible(rooms), fits)


def _started(attempt: Attempt) -> Found:
    """Nodes that are merely not there: one of them, or all."""
    away = rooms_if_started(attempt.snapshot)
    for name in _with_one_of(attempt, away):
        yield Suggestion(text=start_words([name]), change={"start": [name]}) if name else None
    yield None
    if len(away) > 1 and attempt.fits(rooms=attempt.rooms | away):
        yield Suggestion(text=start_words(list(away)), change={"start": list(away)})


def rooms_if_started(snapshot: Snapshot) -> Rooms:
    """What the nodes that are not alive would offer, if they were."""
    return {
        name: Room.of(node)
        for name, node in sorted(snapshot.nodes.items())
        if not node.is_alive and node.ledger.takes_work
    }


def start_words(names: Sequence[NodeName]) -> str:
    command = "; ".join(f"ozy node start {name}" for name in names)
    return f"start {' and '.join(names)} (where `ozy up` made it: `{command}`)"


_ENDING: Mapping[str, Callable[[Node], Node]] = {
    "undrain": lambda node: replace(node, ledger=replace(node.ledger, drain=None)),
    "uncordon": lambda node: replace(node, ledger=replace(node.ledger, is_cordoned=False)),
}


def _reopened(attempt: Attempt, verb: str) -> Found:
    """Nodes that are shut by what this ends, and by nothing else."""
    shut = {
        name: Room.of(node)
        for name, node in sorted(attempt.snapshot.nodes.items())
        if why_closed(node) and not why_closed(_ENDING[verb](node))
    }
    for name in _with_one_of(attempt, shut):
        yield Suggestion(text=f"{verb} {name}", change={verb: name}) if name else None


def _labelled(attempt: Attempt) -> Found:
    """A node that takes work and lacks nothing but labels."""
    against = attempt.rules.against
    lacking = _labels_lacking(attempt)
    unlike = rules_of(*_whatever_the_labels(attempt)).against if lacking else {}
    rooms = {n: room for n, room in attempt.rooms.items() if n in lacking and n not in unlike}

    def fits(name: NodeName) -> bool:
        others = {other: why for other, why in against.items() if other != name}
        return attempt.fits(rules=replace(attempt.rules, against=others))

    for name in _that_do(attempt, rooms, fits):
        if name is None:
            yield None
        else:
            yield from (label_suggestion(name, labels) for labels in lacking[name])


def _labels_lacking(attempt: Attempt) -> dict[NodeName, Sequence[Mapping[str, str]]]:
    """For each node that labels would make eligible: those, or others that would as well."""
    demands = label_demands(attempt.snapshot.settings, attempt.job)
    named = {rule.label for asked in demands for rule in asked}
    alike: dict[tuple[str | None, ...], Sequence[Mapping[str, str]]] = {}
    found: dict[NodeName, Sequence[Mapping[str, str]]] = {}
    for name in attempt.rooms if named else ():
        if name not in attempt.rules.against:
            continue
        present = attempt.snapshot.nodes[name].ledger.all_labels
        values = tuple(present.get(label) for label in named)
        if values not in alike:
            alike[values] = [labels for d in demands if (labels := labels_for(d, present))]
        if alike[values]:
            found[name] = alike[values]
    return found


def _whatever_the_labels(attempt: Attempt) -> tuple[Snapshot, Job]:
    """The same cluster and job, but nothing is required of a node's labels."""
    snapshot, job = attempt.snapshot, attempt.job
    soft = tuple(pool for pool in snapshot.settings.pools if not pool.is_hard)
    settings, asked = replace(snapshot.settings, pools=soft), replace(job.placement, require=())
    return replace(snapshot, settings=settings), replace(job, placement=asked)


def label_suggestion(name: NodeName, labels: Mapping[str, str]) -> Suggestion:
    words = " ".join(f"{label}={value}" for label, value in labels.items())
    return Suggestion(
        text=f"label {name} {words} (`ozy node label {name} {words}`)",
        change={"label": {"node": name, "labels": dict(labels)}},
    )
