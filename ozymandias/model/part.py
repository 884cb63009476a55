"""A part of the nodes of a large cluster."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """One of so many equal arcs of the ring on which every node has its place."""

    number: int  # from 0
    of: int
