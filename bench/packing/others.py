"""How others choose a node, written from their published descriptions, on the same inputs.

Every one of them sees all nodes for every instance (Nomad looks at a few, chosen by lot, and
Kubernetes at a part of a large cluster), and what found no place is tried again when all others
had their turn. None of them moves what is placed, as neither do we here.
"""

from collections.abc import Callable, Iterable
from statistics import pstdev

from bench.packing.clusters import Cluster, Filling, Machine, Packing, Work

# The higher the better; ties go to the first by name.
Score = Callable[[Filling, Work, Machine], float]


def first_fit(filling: Filling, work: Work, machine: Machine) -> float:
    return 0.0


def best_fit(filling: Filling, work: Work, machine: Machine) -> float:
    """Where the least memory is left."""
    return -filling.memory[machine.name]


def nomad(filling: Filling, work: Work, machine: Machine) -> float:
    """Bin-packing, 20 - (10^free CPU + 10^free memory) of 18, and the penalty for its own kind.

    The parts that apply are averaged: the penalty counts only where an instance of the job is.
    """
    cpu, memory = _used(filling, work, machine)
    fit = min(18.0, max(0.0, 20.0 - (10 ** (1 - cpu) + 10 ** (1 - memory)))) / 18
    there = filling.packing.get((work.name, machine.name), 0)
    return (fit - (there + 1) / work.instances) / 2 if there else fit


def least_allocated(filling: Filling, work: Work, machine: Machine) -> float:
    """Kubernetes as it comes: the emptiest node, and CPU and memory used alike."""
    used = _used(filling, work, machine)
    return 100 * (1 - sum(used) / 2) + _balanced(used)


def most_allocated(filling: Filling, work: Work, machine: Machine) -> float:
    """Kubernetes told to pack: the fullest node, and CPU and memory used alike."""
    used = _used(filling, work, machine)
    return 100 * sum(used) / 2 + _balanced(used)


def _balanced(used: Iterable[float]) -> float:
    return 100 * (1 - pstdev(used))


def _used(filling: Filling, work: Work, machine: Machine) -> tuple[float, float]:
    """The parts of CPU and memory in use with this instance; CPU none where it is not counted."""
    left = filling.memory[machine.name] - work.memory
    cpu = 1 - (filling.cpu[machine.name] - work.cpu) / machine.cpu if machine.cpu else 0.0
    return cpu, 1 - left / machine.memory


def as_they_come(cluster: Cluster) -> list[Work]:
    return list(cluster.works)


def largest_first(cluster: Cluster) -> list[Work]:
    """By the largest part that an instance takes of all there is of anything."""
    memory = sum(machine.memory for machine in cluster.machines)
    disk = sum(machine.disk for machine in cluster.machines)
    cpu = sum(machine.cpu for machine in cluster.machines) or 1
    return sorted(cluster.works, key=lambda w: -max(w.memory / memory, w.disk / disk, w.cpu / cpu))


OTHERS: dict[str, tuple[Score, Callable[[Cluster], list[Work]]]] = {
    "first fit": (first_fit, as_they_come),
    "best fit": (best_fit, as_they_come),
    "nomad": (nomad, as_they_come),
    "kubernetes least allocated": (least_allocated, as_they_come),
    "kubernetes most allocated": (most_allocated, as_they_come),
    "first fit, largest first": (first_fit, largest_first),
    "best fit, largest first": (best_fit, largest_first),
}


def packed(cluster: Cluster, score: Score, order: Callable[[Cluster], list[Work]]) -> Packing:
    filling = Filling(cluster=cluster)
    works = order(cluster)
    missing = {work.name: work.instances for work in works}
    while True:
        before = sum(missing.values())
        for work in works:
            while missing[work.name] and _put(filling, work, score):
                missing[work.name] -= 1
        if sum(missing.values()) == before:
            return filling.packing


def _put(filling: Filling, work: Work, score: Score) -> bool:
    allowed = [m for m in filling.cluster.machines if filling.allows(work, m)]
    if not allowed:
        return False
    filling.put(work, max(allowed, key=lambda machine: score(filling, work, machine)))
    return True
