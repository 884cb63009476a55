"""Read-only tables that share: one made from another keeps all that did not change.

A snapshot is taken after every change and handed to everybody, so a table must cost what the change
touched and not what the cluster holds. `Table` is a mapping with few changes laid over many
entries; `Pairs` is keyed by (node, job) and knows its rows of either kind. A row is a plain dict
that nobody changes once it is part of a table; who has the same row as before knows, without
looking, that nothing in it is different.
"""

from collections.abc import Callable, Hashable, ItemsView, Iterator, KeysView, Mapping
from collections.abc import Set as AbstractSet
from typing import Any, Generic, Self, TypeVar
from weakref import ref

from ozymandias.model.job import JobKey
from ozymandias.model.node import NodeName

K = TypeVar("K")
V = TypeVar("V")
T = TypeVar("T")
Pair = tuple[NodeName, JobKey]

SMALL = 64  # entries; so few are copied as quickly as anything else is done with them
RECENT_MAX = 64  # changes that a table carries along; a large one more, by its square root


class Table(Mapping[K, V]):
    """Many entries that are shared, and the few that changed since, where None is a gap."""

    __slots__ = ("_base", "_found", "_length", "_recent", "facts")

    def __init__(
        self,
        base: Mapping[K, V],
        recent: Mapping[K, V | None],
        length: int,
        facts: dict[str, Any] | None = None,
    ) -> None:
        self._base, self._recent, self._length = base, recent, length
        # What was found out about the shared entries, for all tables that share them.
        self.facts: dict[str, Any] = {} if facts is None else facts
        self._found: dict[Hashable, Any] = {}

    @classmethod
    def of(cls, entries: Mapping[K, V]) -> "Table[K, V]":
        """The entries as a table; they must not change any more."""
        return entries if isinstance(entries, Table) else cls(entries, {}, len(entries))

    def changed(self, updates: Mapping[K, V | None]) -> "Table[K, V]":
        """This table with these entries; None takes one away."""
        recent = {**self._recent, **updates}
        length = self._length
        for key, value in updates.items():
            length += (value is not None) - (key in self)
        size = len(self._base)
        if size > SMALL and (len(recent) <= RECENT_MAX or len(recent) ** 2 <= 4 * size):
            return Table(self._base, recent, length, self.facts)
        base = dict(self._base)
        for key, value in recent.items():
            if value is None:
                base.pop(key, None)
            else:
                base[key] = value
        return Table(base, {}, length)

    def find(self, what: Hashable, look: "Callable[[Table[K, V]], T]") -> T:
        """What follows from this very table alone: looked for once, whoever asks."""
        if what not in self._found:
            self._found[what] = look(self)
        found: T = self._found[what]
        return found

    @property
    def shared(self) -> Mapping[K, V]:
        """The entries that are shared, some of which have ``recent`` ones in their stead."""
        return self._base

    @property
    def recent(self) -> Mapping[K, V | None]:
        return self._recent

    def __getitem__(self, key: K) -> V:
        if key in self._recent:
            value = self._recent[key]
            if value is None:
                raise KeyError(key)
            return value
        return self._base[key]

    def get(self, key: K, default: Any = None) -> Any:
        """As every mapping's, without raising and catching for what is not there."""
        if key in self._recent:
            value = self._recent[key]
            return default if value is None else value
        return self._base.get(key, default)

    def __contains__(self, key: object) -> bool:
        if key in self._recent:
            return self._recent[key] is not None  # type: ignore[index]
        return key in self._base

    def __len__(self) -> int:
        return self._length

    def __iter__(self) -> Iterator[K]:
        return (key for key, _ in self._entries()) if self._recent else iter(self._base)

    def items(self) -> ItemsView[K, V]:
        return _Items(self) if self._recent else self._base.items()

    def keys(self) -> KeysView[K]:
        return super().keys() if self._recent else self._base.keys()

    def _entries(self) -> Iterator[tuple[K, V]]:
        recent, base = self._recent, self._base
        for key, value in base.items():
            if key not in recent:
                yield key, value
            elif (newer := recent[key]) is not None:
                yield key, newer
        for key, newer in recent.items():
            if newer is not None and key not in base:
                yield key, newer

    def __repr__(self) -> str:
        return f"Table({dict(self)!r})"


class _Items(ItemsView[K, V]):
    """Without looking every key up a second time."""

    _mapping: Table[K, V]

    def __iter__(self) -> Iterator[tuple[K, V]]:
        return self._mapping._entries()


class Sheet(dict[K, V]):
    """A whole copy, for what is read far more often than changed; it knows what it changed."""

    __slots__ = ("__weakref__", "_base", "changed")

    @classmethod
    def laid_over(cls, before: Mapping[K, V], changes: Mapping[K, V | None]) -> "Sheet[K, V]":
        """What was before with these changes; None takes one away."""
        sheet = cls(before)
        sheet.changed = changes.keys()
        sheet._base = ref(before) if isinstance(before, Sheet) else None
        for key, value in changes.items():
            if value is None:
                sheet.pop(key, None)
            else:
                sheet[key] = value
        return sheet

    def is_made_from(self, other: Mapping[K, V]) -> bool:
        """Whether it is the other one but for what it ``changed``."""
        return self._base is not None and self._base() is other

    changed: AbstractSet[K]
    _base: "ref[Sheet[K, V]] | None"


class Pairs(Mapping[Pair, V], Generic[V]):
    """Entries by (node, job), in rows by node and in rows by job."""

    __slots__ = ("_by_job", "_by_node", "_length")

    def __init__(
        self,
        by_node: Mapping[NodeName, dict[JobKey, V]],
        by_job: Table[JobKey, dict[NodeName, V]],
        length: int,
    ) -> None:
        self._by_node, self._by_job, self._length = by_node, by_job, length

    @classmethod
    def of(cls, entries: Mapping[Pair, V]) -> Self:
        if isinstance(entries, cls):
            return entries
        return cls({}, Table.of({}), 0).changed(entries)

    def changed(self, updates: Mapping[Pair, V | None]) -> Self:
        """These pairs as they shall be; None takes one away. Only their rows are copied."""
        nodes: dict[NodeName, dict[JobKey, V]] = {}
        jobs: dict[JobKey, dict[NodeName, V]] = {}
        length = self._length
        for (node, job), value in updates.items():
            row = nodes.get(node)
            if row is None:
                known = self._by_node.get(node)
                row = nodes[node] = self._new_row() if known is None else known.copy()
            column = jobs.get(job)
            if column is None:
                there = self._by_job.get(job)
                column = jobs[job] = self._new_column() if there is None else there.copy()
            old = row.get(job)
            if value is None:
                row.pop(job, None)
                column.pop(node, None)
            else:
                row[job] = column[node] = value
            length += (value is not None) - (old is not None)
            self._book(row, column, old, value)
        by_node = dict(self._by_node)
        for node, row in nodes.items():
            if row:
                by_node[node] = row
            else:
                by_node.pop(node, None)
        by_job = self._by_job.changed({job: column or None for job, column in jobs.items()})
        return type(self)(by_node, by_job, length)

    def _new_row(self) -> dict[JobKey, V]:
        return {}

    def _new_column(self) -> dict[NodeName, V]:
        return {}

    def _book(
        self, row: dict[JobKey, V], column: dict[NodeName, V], old: V | None, new: V | None
    ) -> None:
        """For tables whose rows keep sums of what is in them."""

    def on(self, node: NodeName) -> Mapping[JobKey, V]:
        """What is on one node, by job."""
        return self._by_node.get(node) or {}

    def of_job(self, job: JobKey) -> Mapping[NodeName, V]:
        """What is of one job, by node."""
        return self._by_job.get(job) or {}

    @property
    def by_node(self) -> Mapping[NodeName, Mapping[JobKey, V]]:
        return self._by_node

    @property
    def by_job(self) -> Mapping[JobKey, Mapping[NodeName, V]]:
        return self._by_job

    def difference(self, other: "Pairs[V]") -> Iterator[Pair]:
        """The pairs in which two tables differ; what they share is not looked at."""
        for node in self._by_node.keys() | other._by_node.keys():
            one, two = self.on(node), other.on(node)
            if one is not two:
                for job in one.keys() | two.keys():
                    if one.get(job) is not two.get(job):
                        yield node, job

    def __getitem__(self, pair: Pair) -> V:
        try:
            return self._by_node[pair[0]][pair[1]]
        except KeyError:
            raise KeyError(pair) from None

    def get(self, pair: Pair, default: V | None = None) -> V | None:  # type: ignore[override]
        row = self._by_node.get(pair[0])
        return default if row is None else row.get(pair[1], default)

    def __contains__(self, pair: object) -> bool:
        return isinstance(pair, tuple) and pair[1] in self._by_node.get(pair[0], ())

    def __iter__(self) -> Iterator[Pair]:
        return ((node, job) for node, row in self._by_node.items() for job in row)

    def items(self) -> ItemsView[Pair, V]:
        return _PairItems(self)

    def __len__(self) -> int:
        return self._length

    def __repr__(self) -> str:
        return f"{type(self).__name__}({dict(self)!r})"


class _PairItems(ItemsView[Pair, V]):
    _mapping: Pairs[V]

    def __iter__(self) -> Iterator[tuple[Pair, V]]:
        rows = self._mapping._by_node.items()
        return (((node, job), value) for node, row in rows for job, value in row.items())
