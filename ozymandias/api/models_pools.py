"""The shape of pools: jobs that scale themselves by what is pending."""

from typing import Literal

from msgspec import Struct


class PoolRow(Struct):
    """``pending`` null: the source could not be asked, or made no sense; ``reason`` says why.

    ``seen_at`` is when the source last had something new to say, by which node ``seen_by``.
    """

    pool: str
    namespace: str
    live: int
    wanted: int
    min: int
    max: int
    pending: int | None
    every_seconds: float
    step: int
    source: Literal["url", "command", "key"]
    seen_at: float | None
    seen_by: str | None
    frozen: str | None
    reason: str


class PoolList(Struct):
    items: list[PoolRow]
    next: str | None
