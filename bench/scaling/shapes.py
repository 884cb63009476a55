"""Jobs and nodes of the bench: what is submitted, and what it is placed on.

A node has room for 300 instances, so that 200 of each fill it to two thirds of its memory and a
tenth of the nodes may be lost. The three shapes are those of the issue: every instance of a job on
another node, at most ten of it per node, as many as the scheduler likes.
"""

from dataclasses import dataclass

from ozymandias.model.job import Container, Job, JobName, PlacementRules
from ozymandias.model.node import NodeName, Resources

INSTANCE_BYTES = 64 * 2**20
PER_NODE = 300
CAPACITY = Resources(memory_bytes=PER_NODE * INSTANCE_BYTES, disk_bytes=2**40)
SHAPES = {"apart": 1, "ten": 10, "uncapped": 0}  # max_per_node


@dataclass(frozen=True, slots=True, kw_only=True)
class Size:
    """What is run; `--factor 0.1` is a tenth of everything that is large."""

    nodes: int
    jobs: int
    instances: int  # of each job
    singles: int  # jobs of one instance through HTTP
    peers: int
    peer_jobs: int  # of ten instances, by one peer and by all of them
    lost_nodes: int
    followers: int
    limit_seconds: float  # at least, of each measurement of the limit
    is_beside: bool = False  # nodes report while jobs are still being placed, not afterwards

    @classmethod
    def scaled(cls, factor: float) -> "Size":
        def part(whole: int, least: int) -> int:
            return max(least, round(whole * factor))

        return cls(
            nodes=part(5000, 20),
            jobs=min(1000, max(4, round(10_000 * factor))),
            instances=part(1000, 10),
            singles=part(20_000, 20),
            peers=8 if factor >= 0.1 else 2,
            peer_jobs=part(8000, 16),
            lost_nodes=part(500, 2),
            followers=part(500, 4),
            limit_seconds=max(0.2, 5 * factor),
        )

    def holds(self) -> bool:
        """Whether all of it fits when the nodes to lose are lost, and every shape is possible."""
        left = self.nodes - self.lost_nodes
        return self.jobs * self.instances <= left * PER_NODE and self.instances <= left


def node_name(number: int) -> NodeName:
    return NodeName(f"n{number:05d}")


def job_of(name: str, instances: int, max_per_node: int) -> Job:
    container = Container(name="app", image="registry.example/app:1", memory_bytes=INSTANCE_BYTES)
    return Job(
        name=JobName(name),
        instances=instances,
        containers=(container,),
        placement=PlacementRules(max_per_node=max_per_node),
    )
