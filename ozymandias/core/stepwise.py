"""Long calculations in steps: whoever runs one may do other things between two of them.

At each `yield` a step is over; what the generator returns is the answer. Here is only said where a
calculation can be interrupted. `api/stepwise.py` lets others in there; whoever has nobody to let in
asks `at_once`. Both come to the same, for what is looked at are values that nobody changes.
"""

from collections.abc import Generator
from typing import TypeVar

Answer = TypeVar("Answer")
Stepwise = Generator[None, None, Answer]


def at_once(steps: Stepwise[Answer]) -> Answer:
    """What a calculation comes to, all its steps in one go."""
    while True:
        try:
            next(steps)
        except StopIteration as end:
            answer: Answer = end.value
            return answer
