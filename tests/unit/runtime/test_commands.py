"""Programs of the host: what they are given, what they say, and how they end."""

import asyncio

import pytest
import uvloop

from ozymandias.ports import RuntimeFailed, RuntimeHung
from ozymandias.runtime.commands import run


def test_a_program_that_ends_before_it_is_spoken_to() -> None:
    """On the daemon's own event loop, too: its end is no failure, however early it comes."""

    async def many() -> None:
        for _ in range(20):
            await asyncio.gather(
                *(run(["true"], deadline_seconds=10, stdin=b"unread") for _ in range(4))
            )

    uvloop.run(many())


async def test_input_output_and_failure() -> None:
    """Input arrives whole, output comes back, a failure carries the program's words."""
    content = b"x" * 300_000
    assert await run(["cat"], deadline_seconds=10, stdin=content) == content
    assert await run(["cat"], deadline_seconds=10) == b""
    with pytest.raises(RuntimeFailed, match="no luck"):
        await run(["sh", "-c", "echo no luck >&2; exit 3"], deadline_seconds=10)
    with pytest.raises(RuntimeFailed, match="can't be run"):
        await run(["no-such-program"], deadline_seconds=10)
    with pytest.raises(RuntimeHung):
        await run(["sleep", "100"], deadline_seconds=0.1)
