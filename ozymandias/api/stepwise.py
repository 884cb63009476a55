"""Long calculations of core in the event loop of a daemon, which has more to do meanwhile."""

import asyncio

from ozymandias.core.stepwise import Answer, Stepwise


async def step_by_step(steps: Stepwise[Answer]) -> Answer:
    """What a calculation comes to; others are answered between its steps."""
    while True:
        try:
            next(steps)
        except StopIteration as end:
            answer: Answer = end.value
            return answer
        await asyncio.sleep(0)
