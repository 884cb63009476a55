"""`replace` for all records.

Those that are made by the hundred thousand (assignments, ledgers, statuses, steps of a plan) are
msgspec's structs: ten times as quick to make, to change and to read from the store as a frozen
dataclass, and otherwise the same. What is made now and then stays a dataclass.
"""

import dataclasses
from typing import Any, TypeVar

from msgspec import Struct, structs

R = TypeVar("R")


def replace(record: R, **changes: Any) -> R:
    """The same but for these members."""
    if isinstance(record, Struct):
        return structs.replace(record, **changes)
    return dataclasses.replace(record, **changes)  # type: ignore[type-var]
