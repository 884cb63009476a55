"""Random clusters and what is to run on them: one input for the optimum, for us and for others.

Plain numbers, on purpose without a word of the product's model: who judges a packing should not
share its notions with who made it. Sizes are in MiB, CPU in thousandths of a core.

A cluster is drawn from a seed and a number. Seeds below ``HELD_OUT`` are for tuning; figures that
are published come from seeds at or above it, which nobody looks at while changing the planners.
"""

import random
from dataclasses import dataclass, field

HELD_OUT = 1000

# What is drawn. Loads are of the whole cluster's memory: some clusters have room to spare, most are
# near full, some can't hold everything.
NODES = (3, 12)
LOAD = (0.70, 1.15)
INSTANCES = (1, 8)
JOBS_MAX = 60
MEMORY_OF_NODES = (2048, 4096, 4096, 8192, 8192, 16384)
MEMORY_OF_JOBS = (64, 128, 192, 256, 384, 512, 768, 1024, 1536, 2048, 3072)
COUNTS_CPU = 0.5  # of the clusters
HAS_NEIGHBOUR = 0.15  # of the jobs
PORTS = (80, 443, 5432, 9100)


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    name: str
    memory: int
    disk: int
    cpu: int  # 0: CPU is not counted in this cluster
    role: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Work:
    """A job: so many instances alike."""

    name: str
    instances: int
    memory: int
    disk: int = 0
    cpu: int = 0
    port: int = 0  # of the host
    role: str = ""  # required
    per_node: int = 0  # at most so many of it on a node
    apart: str = ""  # never on a node with that job
    near: str = ""  # only on a node with that job


@dataclass(frozen=True, slots=True, kw_only=True)
class Cluster:
    name: str
    machines: tuple[Machine, ...]
    works: tuple[Work, ...]  # in the order in which they arrive

    @property
    def wanted(self) -> int:
        return sum(work.instances for work in self.works)

    @property
    def load(self) -> float:
        """The memory that is asked for, by the memory that is there."""
        asked = sum(work.instances * work.memory for work in self.works)
        return asked / sum(machine.memory for machine in self.machines)


# So many instances of each job on each node: (job, node) -> number, none where it is 0.
Packing = dict[tuple[str, str], int]


def drawn(seed: int, number: int) -> Cluster:
    dice = random.Random(f"packing/{seed}/{number}")
    counts_cpu = dice.random() < COUNTS_CPU
    machines = tuple(_machine(dice, index, counts_cpu) for index in range(dice.randint(*NODES)))
    there = sum(machine.memory for machine in machines)
    goal = dice.uniform(*LOAD) * there
    works: list[Work] = []
    asked = 0
    while asked < goal and len(works) < JOBS_MAX:
        work = _work(dice, len(works), machines, works)
        works.append(work)
        asked += work.instances * work.memory
    return Cluster(name=f"{seed}/{number}", machines=machines, works=tuple(works))


def _machine(dice: random.Random, index: int, counts_cpu: bool) -> Machine:
    memory = dice.choice(MEMORY_OF_NODES)
    return Machine(
        name=f"n{index + 1:02}",
        memory=memory,
        disk=memory * dice.choice((2, 4, 8)),
        cpu=memory // 1024 * dice.choice((250, 500, 1000)) if counts_cpu else 0,
        role=dice.choice(("infra", "apps", "apps")),
    )


def _work(
    dice: random.Random, index: int, machines: tuple[Machine, ...], earlier: list[Work]
) -> Work:
    """One that at least one machine could hold, were it empty."""
    largest = max(machine.memory for machine in machines)
    memory = dice.choice([size for size in MEMORY_OF_JOBS if size <= largest // 2])
    instances = dice.randint(*INSTANCES)
    counts_cpu = machines[0].cpu > 0
    has_port = dice.random() < 0.1
    neighbour = dice.choice(earlier) if earlier and dice.random() < HAS_NEIGHBOUR else None
    is_apart = neighbour is not None and dice.random() < 0.67
    return Work(
        name=f"job-{index:02}",
        instances=min(instances, len(machines)) if has_port else instances,
        memory=memory,
        disk=dice.choice((1, 2, 4)) * memory if dice.random() < 0.4 else 0,
        cpu=dice.choice((50, 100, 250, 500)) if counts_cpu and dice.random() < 0.7 else 0,
        port=dice.choice(PORTS) if has_port else 0,
        role=dice.choice(machines).role if dice.random() < 0.2 else "",
        per_node=dice.choice((1, 2, 3)) if dice.random() < 0.2 else 0,
        apart=neighbour.name if neighbour and is_apart else "",
        near=neighbour.name if neighbour and not is_apart else "",
    )


# Judging ------------------------------------------------------------------------------------------


@dataclass(slots=True, kw_only=True)
class Filling:
    """A cluster being packed, one instance at a time: what is allowed, not what is good."""

    cluster: Cluster
    packing: Packing = field(default_factory=dict)
    memory: dict[str, int] = field(default_factory=dict)  # left, by node
    disk: dict[str, int] = field(default_factory=dict)
    cpu: dict[str, int] = field(default_factory=dict)
    ports: set[tuple[str, int]] = field(default_factory=set)
    works: dict[str, Work] = field(default_factory=dict)
    # Who refuses whom, both ways: it does not matter which of two came first.
    enemies: dict[str, set[str]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for machine in self.cluster.machines:
            self.memory[machine.name] = machine.memory
            self.disk[machine.name] = machine.disk
            self.cpu[machine.name] = machine.cpu
        for work in self.cluster.works:
            self.works[work.name] = work
            if work.apart:
                self.enemies.setdefault(work.name, set()).add(work.apart)
                self.enemies.setdefault(work.apart, set()).add(work.name)

    def allows(self, work: Work, machine: Machine) -> bool:
        node = machine.name
        there = self.packing.get((work.name, node), 0)
        return (
            work.memory <= self.memory[node]
            and work.disk <= self.disk[node]
            and (not machine.cpu or work.cpu <= self.cpu[node])
            and not (work.role and work.role != machine.role)
            and not (work.per_node and there >= work.per_node)
            and not (work.port and (node, work.port) in self.ports)
            and not any((other, node) in self.packing for other in self.enemies.get(work.name, ()))
            and not (work.near and (work.near, node) not in self.packing)
        )

    def put(self, work: Work, machine: Machine) -> None:
        node = machine.name
        self.packing[work.name, node] = self.packing.get((work.name, node), 0) + 1
        self.memory[node] -= work.memory
        self.disk[node] -= work.disk
        self.cpu[node] -= work.cpu
        if work.port:
            self.ports.add((node, work.port))

    def placed(self, work: Work) -> int:
        return sum(
            self.packing.get((work.name, machine.name), 0) for machine in self.cluster.machines
        )


def placed(packing: Packing) -> int:
    return sum(packing.values())


def faults(cluster: Cluster, packing: Packing) -> list[str]:
    """What a packing does that is not allowed: told by sums, not by replaying it."""
    found = []
    works = {work.name: work for work in cluster.works}
    for machine in cluster.machines:
        there = {
            job: count for (job, node), count in packing.items() if node == machine.name and count
        }
        for resource in ("memory", "disk", "cpu"):
            used = sum(count * getattr(works[job], resource) for job, count in there.items())
            limit = getattr(machine, resource)
            if used > limit and not (resource == "cpu" and not limit):
                found.append(f"{machine.name} has {used} of {limit} {resource}")
        ports = [works[job].port for job, count in there.items() for _ in range(count)]
        taken = [port for port in ports if port]
        if len(taken) != len(set(taken)):
            found.append(f"{machine.name} gives a port twice")
        for job, count in there.items():
            work = works[job]
            if work.role and work.role != machine.role:
                found.append(f"{job} is on {machine.name}, which is not {work.role}")
            if work.per_node and count > work.per_node:
                found.append(f"{machine.name} has {count} of {job}")
            if work.apart in there:
                found.append(f"{job} and {work.apart} are both on {machine.name}")
            if work.near and work.near not in there:
                found.append(f"{job} is on {machine.name} without {work.near}")
    for work in cluster.works:
        count = sum(n for (job, _), n in packing.items() if job == work.name)
        if count > work.instances:
            found.append(f"{count} of {work.name}")
    return found
