"""Read-only tables that share: one made from another keeps all that did not change.

A snapshot is taken after every change and handed to everybody, so a table must cost what the change
touched and not what the cluster holds. `Table` is a mapping with few changes laid over many
entries; `Pairs` is keyed by (node, job) and knows its rows by node and its columns by job. Nobody
changes those once they are part of a table; who has the same row as before knows, without looking,
that nothing in it is different.
"""

from abc import abstractmethod
from collections.abc import (
    Callable,
    Collection,
    Hashable,
    ItemsView,
    Iterator,
    KeysView,
    Mapping,
    ValuesView,
)
from itertools import repeat
from math import isqrt
from operator import is_not
from typing import Any, Generic, Self, TypeVar
from weakref import ref

from ozymandias.model.job import JobKey
from ozymandias.model.node import NodeName

K = TypeVar("K")
V = TypeVar("V")
T = TypeVar("T")
Pair = tuple[NodeName, JobKey]

SMALL = 64  # entries; so few are copied as quickly as anything else is done with them
RECENT_MAX = 64  # changes that a table carries along; a large one more: `_recent_max`
LINKS_MAX = 24  # changes that a row carries along

_Older = tuple[dict[Hashable, Any], Mapping[K, V | None]]


class Sharing(Mapping[K, V]):
    """Entries of which most are shared; who asks for all of them sees a dict."""

    __slots__ = ()

    @abstractmethod
    def _all(self) -> dict[K, V]: ...

    def __iter__(self) -> Iterator[K]:
        return iter(self._all())

    def items(self) -> ItemsView[K, V]:
        return self._all().items()

    def keys(self) -> KeysView[K]:
        return self._all().keys()

    def values(self) -> ValuesView[V]:
        return self._all().values()

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self._all()!r})"


def _laid_over(base: dict[K, V], changes: Mapping[K, V | None]) -> dict[K, V]:
    entries = base.copy()
    for key, value in changes.items():
        if value is None:
            entries.pop(key, None)
        else:
            entries[key] = value
    return entries


class Table(Sharing[K, V]):
    """All of one kind: nodes, jobs, claims.

    Many entries that are shared, and the few that changed since, where None is a gap.
    """

    __slots__ = (
        "__weakref__",
        "_base",
        "_before",
        "_found",
        "_lasting",
        "_number",
        "_older",
        "_prior",
        "_recent",
        "_updates",
        "_whole",
        "facts",
    )

    def __init__(
        self,
        base: dict[K, V],
        recent: dict[K, V | None],
        facts: dict[Hashable, Any],
        older: "_Older[K, V]",
        before: "Table[K, V] | None" = None,
        updates: Mapping[K, V | None] | None = None,
        lasting: dict[Hashable, Any] | None = None,
    ) -> None:
        self._base, self._recent, self._number = base, recent, -1  # entries, once counted
        # What was found out about the shared entries, for all tables that share them.
        self.facts = facts
        # The facts of the entries that these were made from, and what is different from those.
        self._older = older
        self._found: dict[Hashable, Any] = {}
        self._whole: dict[K, V] | None = None
        # The table that it was made from, what is different from there, and what was found there.
        self._before = ref(before) if before is not None else None
        self._updates = updates or {}
        self._prior = before._found if before is not None else {}
        self._lasting = {} if lasting is None else lasting

    @classmethod
    def of(cls, entries: Mapping[K, V]) -> "Table[K, V]":
        """The entries as a table; they must not change any more."""
        if isinstance(entries, Table):
            return entries
        base = entries if isinstance(entries, dict) else dict(entries)
        return cls(base, {}, {}, ({}, {}))

    def changed(self, updates: Mapping[K, V | None], *, lasts: bool = False) -> "Table[K, V]":
        """This table with these entries; None takes one away.

        ``lasts``: nothing is different of what `lasting` is asked for.
        """
        base, lasting = self._base, self._lasting if lasts else None
        recent, size = {**self._recent, **updates}, len(base)
        if size > SMALL and (
            len(recent) <= RECENT_MAX or len(recent) <= _recent_max(size, len(updates))
        ):
            return Table(base, recent, self.facts, self._older, self, updates, lasting)
        whole = _laid_over(base, recent)
        return Table(whole, {}, {}, (self.facts, recent), self, updates, lasting)

    def __len__(self) -> int:
        """Counted when it is first asked for: nobody does of most tables."""
        if self._number < 0:
            base, recent = self._base, self._recent
            there = sum(map(is_not, recent.values(), repeat(None)))
            self._number = len(base) + there - sum(map(base.__contains__, recent))
        return self._number

    def __bool__(self) -> bool:
        """Few changes take away no more than they are."""
        return len(self._base) > len(self._recent) or len(self) > 0

    def changes_since(self, other: Mapping[K, V]) -> Mapping[K, V | None] | None:
        """All entries that may differ from another one's, as they are here; None: not known."""
        if self._before is not None and self._before() is other:
            return self._updates
        if isinstance(other, Table) and self._base is other._base:
            both = self._recent.keys() | other._recent.keys()
            return {key: self.get(key) for key in both}
        return None

    def find(self, what: Hashable, look: "Callable[[Table[K, V]], T]") -> T:
        """What follows from this very table alone: looked for once, whoever asks."""
        if what not in self._found:
            self._found[what] = look(self)
        found: T = self._found[what]
        return found

    def lasting(self, what: Hashable, look: "Callable[[Table[K, V]], T]") -> T:
        """The same of what seldom changes: looked for once for all tables of which it holds."""
        if what not in self._lasting:
            self._lasting[what] = look(self)
        found: T = self._lasting[what]
        return found

    def where(self, holds: Callable[[V], Any]) -> dict[K, V]:
        """The few entries of which something holds, by a function that is known by name.

        Only what changed is looked at: since the table that this was made from, if somebody asked
        there, or else in what is shared, which is looked at once for all tables that share it, and
        there again only at what is different from what was shared before.
        """
        if holds not in self._found:
            newer: Mapping[K, V | None]
            if holds in self._prior:
                known, newer = self._prior[holds], self._updates
            else:
                if holds not in self.facts:
                    older, since = self._older
                    is_known = holds in older
                    known, newer = (older[holds], since) if is_known else ({}, self._base)
                    self.facts[holds] = _where(holds, known, newer)
                known, newer = self.facts[holds], self._recent
            self._found[holds] = _where(holds, known, newer)
        few: dict[K, V] = self._found[holds]
        return few

    def __getitem__(self, key: K) -> V:
        value = self._recent[key] if key in self._recent else self._base[key]
        if value is None:
            raise KeyError(key)
        return value

    def get(self, key: K, default: Any = None) -> Any:
        """As every mapping's, without raising and catching for what is not there."""
        if key in self._recent:
            value = self._recent[key]
            return default if value is None else value
        return self._base.get(key, default)

    def of_each(self, keys: Collection[K]) -> Iterator[V | None]:
        """What stands for each of these, in their order."""
        return map(self._recent.get, keys, map(self._base.get, keys))

    def __contains__(self, key: object) -> bool:
        if key in self._recent:
            return self._recent[key] is not None
        return key in self._base

    @property
    def shared(self) -> Mapping[K, V]:
        """The entries that are shared, some of which have ``recent`` ones in their stead."""
        return self._base

    @property
    def recent(self) -> Mapping[K, V | None]:
        return self._recent

    def _all(self) -> dict[K, V]:
        """For who looks at all of it, as nobody does at most tables."""
        if not self._recent:
            return self._base
        if self._whole is None:
            self._whole = _laid_over(self._base, self._recent)
        return self._whole


def _recent_max(size: int, updates: int) -> int:
    """How many changes are carried along by so many entries, if so many come at a time.

    Each time those before are copied, and when there are too many, once, all entries. That is least
    where both cost the same.
    """
    return min(size // 2, isqrt(2 * size * max(2, updates)))


def _where(
    holds: Callable[[V], Any], known: Mapping[K, V], newer: Mapping[K, V | None]
) -> dict[K, V]:
    """The entries of which it holds: those that are ``known`` and not newer, and the newer ones."""
    found = {k: value for k, value in newer.items() if value is not None and holds(value)}
    if not known:
        return found
    return {key: value for key, value in known.items() if key not in newer} | found


def changes_between(before: Mapping[K, V], after: Mapping[K, V]) -> Mapping[K, V | None]:
    """All entries that are not the same in both, and maybe more, as they are afterwards."""
    if isinstance(after, Table) and (changes := after.changes_since(before)) is not None:
        return changes
    changes = {key: value for key, value in after.items() if before.get(key) is not value}
    return changes | dict.fromkeys(before.keys() - after.keys())


class Row(Sharing[K, V]):
    """A row of `Pairs`.

    One on a node that has hundreds of jobs gets a successor for each that comes or goes, and few of
    them are ever looked at. So a successor is the one entry that is different and the row before,
    with which it shares all others; who wants to see all of it lays those entries over once.
    """

    __slots__ = ("_base", "_before", "_key", "_length", "_links", "_value")

    _key: K
    _value: V | None
    _before: Self

    def __init__(self) -> None:
        self._base: dict[K, V] = {}
        self._links = 0  # how many rows it goes back to one that has all its entries in the base
        self._length = 0

    def __len__(self) -> int:
        return self._length

    def entered(self, key: K, old: V | None, new: V | None) -> Self:
        """The row with something in the place of what was there; None: nothing."""
        row = self._successor(key, new)
        row._length = self._length + (old is None) - (new is None)
        return row

    def _successor(self, key: K, new: V | None) -> Self:
        """With one more entry, its length not known yet."""
        if self._links >= LINKS_MAX:
            self._all()
        row = self.__class__.__new__(self.__class__)
        row._key, row._value, row._before, row._links = key, new, self, self._links + 1
        return row

    def get(self, key: K, default: Any = None) -> Any:
        """As every mapping's; one entry is found without laying out all of them."""
        row = self
        while row._links:
            if row._key == key:
                return default if row._value is None else row._value
            row = row._before
        return row._base.get(key, default)

    def __getitem__(self, key: K) -> V:
        value: V | None = self.get(key)
        if value is None:
            raise KeyError(key)
        return value

    def __contains__(self, key: object) -> bool:
        return self._all().__contains__(key)

    def _all(self) -> dict[K, V]:
        """The same entries without links: a row says no less after it than before."""
        row, newest = self, list[tuple[K, V | None]]()
        while row._links:
            newest.append((row._key, row._value))
            row = row._before
        if newest:
            newest.reverse()
            self._base, self._links = _laid_over(row._base, dict(newest)), 0
            del self._before, self._key, self._value
        return self._base


class Column(dict[NodeName, V]):
    """A column of `Pairs`. It is written while a table is made, and read-only as a part of it."""

    __slots__ = ()

    def copy(self) -> "Column[V]":
        return Column(self)

    def enter(self, node: NodeName, old: V | None, new: V | None) -> None:
        if new is not None:
            self[node] = new
        elif old is not None:
            del self[node]


class Pairs(Mapping[Pair, V], Generic[V]):
    """Entries by (node, job), in rows by node and in columns by job."""

    __slots__ = ("_by_job", "_by_node", "_length")

    def __init__(
        self,
        by_node: Table[NodeName, Row[JobKey, V]],
        by_job: Table[JobKey, Column[V]],
        length: int,
    ) -> None:
        self._by_node, self._by_job, self._length = by_node, by_job, length

    @classmethod
    def of(cls, entries: Mapping[Pair, V]) -> Self:
        if isinstance(entries, cls):
            return entries
        return cls(Table.of({}), Table.of({}), 0).changed(entries)

    def changed(self, updates: Mapping[Pair, V | None]) -> Self:
        """These pairs as they shall be; None takes one away. Only their rows are copied."""
        by_node, by_job, length = self._by_node, self._by_job, self._length
        nodes: dict[NodeName, Row[JobKey, V]] = {}
        jobs: dict[JobKey, Column[V]] = {}
        blank = self._new_row()
        last, column = None, self._new_column()  # of the pair before: most are of one job
        for (node, job), new in updates.items():
            if job is not last:
                last = job
                if job not in jobs:
                    there = by_job.get(job)
                    jobs[job] = self._new_column() if there is None else there.copy()
                column = jobs[job]
            old = column.get(node)
            column.enter(node, old, new)
            length += (old is None) - (new is None)
            row = nodes[node] if node in nodes else by_node.get(node, blank)
            nodes[node] = row.entered(job, old, new)
        rows = {node: row if row._length else None for node, row in nodes.items()}
        columns = {job: column or None for job, column in jobs.items()}
        return type(self)(by_node.changed(rows), by_job.changed(columns), length)

    def _new_row(self) -> Row[JobKey, V]:
        return Row()

    def _new_column(self) -> Column[V]:
        return Column()

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
        value = self.get(pair)
        if value is None:
            raise KeyError(pair)
        return value

    def get(self, pair: Pair, default: V | None = None) -> V | None:  # type: ignore[override]
        column = self._by_job.get(pair[1])
        return default if column is None else column.get(pair[0], default)

    def __contains__(self, pair: object) -> bool:
        return isinstance(pair, tuple) and pair[0] in self._by_job.get(pair[1], ())

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
