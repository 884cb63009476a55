"""`replace` for all records, and what follows from one and is found `once`.

Those that are made by the hundred thousand (assignments, ledgers, statuses, steps of a plan) or
read by every peer (jobs) are msgspec's structs: ten times as quick to make, to change and to read
from the store as a frozen dataclass, and otherwise the same. What is made now and then stays a
dataclass.
"""

import dataclasses
from collections.abc import Callable
from typing import Any, Generic, TypeVar, overload

from msgspec import Struct, structs

R = TypeVar("R")
T = TypeVar("T")


def replace(record: R, **changes: Any) -> R:
    """The same but for these members."""
    if isinstance(record, Struct):
        return structs.replace(record, **changes)
    return dataclasses.replace(record, **changes)  # type: ignore[type-var]


class once(Generic[T]):  # noqa: N801 - a decorator, and spelt as such
    """A property that is found when it is first asked for, of records that have a ``__dict__``.

    functools' own takes a lock each time, as it is made for threads. A decision is no place for
    those, and makes thousands of such records.
    """

    def __init__(self, find: Callable[[Any], T]) -> None:
        self._find, self._name, self.__doc__ = find, find.__name__, find.__doc__

    @overload
    def __get__(self, record: None, owner: type) -> "once[T]": ...
    @overload
    def __get__(self, record: object, owner: type) -> T: ...
    def __get__(self, record: object | None, owner: type) -> "once[T] | T":
        if record is None:
            return self
        found = record.__dict__[self._name] = self._find(record)
        return found
