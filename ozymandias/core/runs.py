"""Placing in runs: what `core/placement.py` would decide, where nothing has to be given up.

As long as there are nodes with fewer than a tenth of the job, and the job has no wishes of its own,
the next best node is the next one of `core/inventory.py`, and it takes as many as it may at once.
That is the whole of nearly every placement. Where it is not, the answer is None and the general way
is gone from the beginning.
"""

from collections.abc import Mapping
from functools import lru_cache
from typing import Any

from ozymandias.core.inventory import ENDLESS, PLACING, Standing
from ozymandias.core.placement import Ask, company_words, cpu_term, share_of
from ozymandias.core.ring import start_of
from ozymandias.core.rooms import UNCOUNTED
from ozymandias.model.node import Node, NodeName
from ozymandias.model.part import Part
from ozymandias.model.plan import Portion, Score
from ozymandias.model.units import format_size

Why = tuple[str, Score]  # what is said of a node, and its score


def place_runs(
    nodes: Mapping[NodeName, Node],
    ask: Ask,
    count: int,
    apart_from: Mapping[NodeName, int],
    part: Part | None = None,
) -> list[Portion] | None:
    """All ``count`` of them, run by run; None when that would ask for more than this knows.

    What `why_of` has to say of each is part of it, to be said when somebody asks.
    In a ``part`` of the nodes if one is given, and only below the target (`core/parts.py`).
    """
    rules = ask.rules
    if rules.is_particular or rules.asked.burst or ask.demand.host_ports or ask.is_tight:
        return None
    there = apart_from if ask.there is None else ask.there
    limit, share = rules.asked.max_per_node or ENDLESS, share_of(ask.wanted)
    order = PLACING.inventory_of(nodes, ask.demand, rules.target_percent)
    start, against = start_of(str(ask.job), ask.version), rules.against
    counts_cpu = bool(ask.demand.cpu_millis)
    most = min(share, limit)  # of a node that has none of it, as all of them do that nobody is on
    is_plain = not (apart_from or there or counts_cpu)
    found: list[Portion] = []
    taken: dict[NodeName, int] = {}  # by now
    why: object
    for name, standing in order.in_part(part, start) if part else order.in_order(start):
        before = taken.get(name, 0)
        if is_plain and not before:
            number, why = min(most, standing.most), standing
        else:
            same, had = apart_from.get(name, 0) + before, there.get(name, 0) + before
            number = min(standing.most, share - same, limit - had)
            cores = _cores(nodes[name]) if counts_cpu else None
            why = standing, same, before, cores
        if number > count:
            number = count
        if number <= 0 or (against and name in against):
            continue
        found.append((name, number, why))
        taken[name] = before + number
        count -= number
        if count == 0:
            return found
    return None


def _cores(node: Node) -> tuple[int, int]:
    """Thousandths of processors that are promised, and that are there."""
    ledger = node.ledger
    return ledger.promised.resources.cpu_millis, ledger.allocatable.cpu_millis


def why_of(ask: Ask, why: Any) -> Why:
    """In the words that the first of the run would be given, after ``before`` others."""
    standing, same, before, processors = (why, 0, 0, None) if type(why) is Standing else why
    demand, limit, promised = ask.demand, standing.limit, standing.promised
    memory = demand.memory_bytes
    free = limit - max(promised, standing.held) - before * memory
    share = (promised + (before + 1) * memory) / max(1, limit)
    cores: tuple[tuple[str, float], ...] = ()
    if processors is not None:
        taken, there = processors
        cores = cpu_term(demand, taken + before * demand.cpu_millis, there or UNCOUNTED)
    is_below = 100 * share <= ask.rules.target_percent
    words = f"has {company_words(ask, same)} and {_free_words(free, limit)}"
    return words, _score(same, round(share, 4), is_below, cores, standing.load)


@lru_cache(maxsize=4096)
def _free_words(free: int, limit: int) -> str:
    return f"{format_size(free)} of {format_size(limit)} memory free"


@lru_cache(maxsize=4096)
def _score(
    same: int,
    share: float,
    is_below: bool,
    cores: tuple[tuple[str, float], ...],
    load: int,
) -> Score:
    """Nodes that are as full have the same one, and share it."""
    return (
        ("same_job", float(same)),
        ("memory_after", share),
        ("below_target", float(is_below)),
        *cores,
        *((("load", float(load)),) if load else ()),
    )
