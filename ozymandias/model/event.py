"""What happened, kept in a ring per node, with the reason in plain words."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class EventRecord:
    number: int  # counts up per node; the ring's place is number mod its size
    time: float  # wall clock
    node: str
    kind: str  # e.g. "instance.started", "node.lost", "job.submitted"
    reason: str
    namespace: str = ""
    job: str = ""
    instance: str = ""


# What a peer decided of an instance, on whichever node that is: the record's node is the peer's.
DECIDED = frozenset(
    f"instance.{word}"
    for word in (
        *("placed", "waiting", "stopping", "cancelled", "admitted", "released", "lost"),
        *("changed", "pending"),
    )
)
