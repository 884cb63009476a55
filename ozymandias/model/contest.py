"""Who had to leave for whom: what a choice of victims was made on, kept with the decision.

A contest is about one instance that fits nowhere. It holds what each node lacks for it and who
there could be asked to leave, so that the choice can be made again (`core/contest.py`). It is cut
where there is much of it, and says how much is left out.
"""

from dataclasses import dataclass

from ozymandias.model.instance import InstanceId, Slots
from ozymandias.model.job import JobKey
from ozymandias.model.node import Demand, HostPort, NodeName


@dataclass(frozen=True, slots=True, kw_only=True)
class Contender:
    """Instances of a job on one node that could be asked to leave, and are alike in that."""

    job: JobKey
    slots: Slots
    priority: int
    is_ready: bool  # healthy: they would be missed at once
    demand: Demand


@dataclass(frozen=True, slots=True, kw_only=True)
class Staying:
    """Instances on the node that was chosen that nobody could ask to leave."""

    job: JobKey
    slots: Slots
    why: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ContestedNode:
    node: NodeName
    lack: tuple[int, int, int]  # of memory, disk and cores; below zero: there is more than enough
    ports: tuple[HostPort, ...] = ()  # of the host, that it needs and others have
    displaced: int = 0  # who had to leave it within the last minute
    contenders: tuple[Contender, ...] = ()  # in the order in which they would be missed
    left_out: int = 0  # instances that could leave too, behind those
    against: str = ""  # something else than room


@dataclass(frozen=True, slots=True, kw_only=True)
class Contest:
    job: JobKey  # of whose instances one is placed
    priority: int
    node: NodeName  # where it is placed
    victims: tuple[InstanceId, ...]
    nodes: tuple[ContestedNode, ...]  # this one first, then those that would have cost least
    left_out: int = 0  # nodes where others could have left
    staying: tuple[Staying, ...] = ()
