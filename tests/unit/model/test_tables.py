"""Tables that share: like dicts to whoever reads, whatever was made from them since."""

from hypothesis import given
from hypothesis import strategies as st

from ozymandias.model.assignments import Assignments, sums_of
from ozymandias.model.instance import Assignment, Group, Slots, SlotState
from ozymandias.model.job import JobKey, JobName, Namespace
from ozymandias.model.node import Demand, HostPort, NodeName
from ozymandias.model.tables import Pairs, Table, changes_between

NUMBERS = st.dictionaries(st.integers(0, 300), st.none() | st.integers(), max_size=150)
PAIRS = st.tuples(
    st.sampled_from([NodeName(f"n{i}") for i in range(4)]),
    st.sampled_from([JobKey(Namespace("default"), JobName(f"j{i}")) for i in range(4)]),
)
# Rows of many, that share their entries with those before them.
WIDE = st.tuples(
    st.sampled_from([NodeName("n1"), NodeName("n2")]),
    st.sampled_from([JobKey(Namespace("default"), JobName(f"j{i}")) for i in range(60)]),
)
GROUPS = st.builds(
    Group,
    uid=st.sampled_from(["a", "b"]),
    version=st.integers(1, 2),
    state=st.sampled_from(SlotState),
    slots=st.builds(Slots.of, st.sets(st.integers(0, 9), min_size=1)),
    demand=st.builds(
        Demand,
        memory_bytes=st.integers(0, 5),
        disk_bytes=st.integers(0, 5),
        host_ports=st.sampled_from([(), (HostPort(port=80),)]),
    ),
)


def laid_over(before: dict, changes: dict) -> dict:  # type: ignore[type-arg]
    both = {**before, **changes}
    return {key: value for key, value in both.items() if value is not None}


def test_what_follows_from_a_table_is_looked_for_once_and_anew_when_it_changed() -> None:
    """A large table and a small one alike, whatever they share with those before them."""
    for size in (3, 300):
        looked: list[int] = []

        def count(table: Table[int, int]) -> int:
            looked.append(len(table))  # noqa: B023
            return sum(value > 0 for value in table.values())

        table = Table.of(dict.fromkeys(range(size), 1))
        assert table.find("above", count) == table.find("above", count) == size
        assert table.changed({0: -1}).find("above", count) == size - 1
        assert table.find("above", count) == size and len(looked) == 2


@given(st.lists(NUMBERS, max_size=8))
def test_a_table_is_the_dict_it_stands_for(steps: list[dict[int, int | None]]) -> None:
    """After any changes it reads as a dict with them would, and so do all tables before it."""
    table: Table[int, int] = Table.of({})
    expected: dict[int, int] = {}
    made = [(table, expected)]
    for step in steps:
        table, expected = table.changed(step), laid_over(expected, step)
        made.append((table, expected))
    for found, wanted in made:
        assert found == wanted and len(found) == len(wanted)
        assert dict(found.items()) == wanted and set(found) == set(found.keys()) == set(wanted)
        assert all((number in found) == (number in wanted) for number in range(300))


def is_even(number: int) -> bool:
    return number % 2 == 0


@given(st.lists(st.tuples(NUMBERS, st.booleans()), max_size=8))
def test_what_holds_of_few_is_found_by_what_changed(
    steps: list[tuple[dict[int, int | None], bool]],
) -> None:
    """Whoever asked before and whoever did not, and each table keeps its own answer."""
    made = [Table.of(dict.fromkeys(range(200), -1))]
    for step, is_asked in steps:
        if is_asked:
            made[-1].where(is_even)
        made.append(made[-1].changed(step))
    for table in made:
        assert table.where(is_even) == {n: v for n, v in table.items() if is_even(v)}


def test_what_held_of_shared_entries_is_known_of_those_made_from_them() -> None:
    """Only what is different is looked at, though many changes at once make another shared part."""
    looked: list[int] = []

    def is_odd(number: int) -> bool:
        looked.append(number)
        return number % 2 == 1

    table = Table.of(dict.fromkeys(range(1000), 2) | {1: 1, 2: 3, 3: 5})
    assert table.where(is_odd).keys() == {1, 2, 3}
    many = table.changed({1: 4}).changed(dict.fromkeys(range(400, 990), 2) | {2: None, 500: 7})
    assert many.shared is not table.shared
    looked.clear()
    assert many.where(is_odd) == {3: 5, 500: 7}
    assert len(looked) == 591
    assert table.where(is_odd).keys() == {1, 2, 3}


@given(st.lists(NUMBERS, min_size=1, max_size=8), st.data())
def test_what_differs_between_two_tables_is_among_the_changes_since(
    steps: list[dict[int, int | None]], data: st.DataObject
) -> None:
    """Of those that share their entries, whichever came first; and of one and the next always."""
    made = [Table.of(dict.fromkeys(range(200), -1))]
    for step in steps:
        made.append(data.draw(st.sampled_from(made)).changed(step))
        assert made[-1].changes_since(made[-1]) == made[-1].recent
    one, other = data.draw(st.sampled_from(made)), data.draw(st.sampled_from(made))
    changes = one.changes_since(other)
    differing = {n: one.get(n) for n in range(300) if one.get(n) != other.get(n)}
    assert changes is None or differing.items() <= changes.items()
    assert changes is not None or one.shared is not other.shared
    assert differing.items() <= changes_between(other, one).items()
    assert differing.items() <= changes_between(dict(other), dict(one)).items()
    following = one.changed(steps[0])
    assert following.changes_since(one) == steps[0]


@given(
    st.lists(
        st.dictionaries(PAIRS, st.none() | st.integers())
        | st.dictionaries(WIDE, st.none() | st.integers(), max_size=60),
        max_size=8,
    )
)
def test_pairs_are_found_by_node_and_by_job(steps: list[dict[tuple, int | None]]) -> None:  # type: ignore[type-arg]
    """Rows of either kind hold the same entries, and a difference names the pairs that differ."""
    table: Pairs[int] = Pairs.of({})
    expected: dict = {}  # type: ignore[type-arg]
    for step in steps:
        before, table = table, table.changed(step)
        wanted = laid_over(expected, step)
        differ = {p for p in {*expected, *wanted} if expected.get(p) != wanted.get(p)}
        assert differ <= set(before.difference(table)) <= set(step)
        expected = wanted
        assert dict(table.items()) == dict(table) == expected and len(table) == len(expected)
        by_node = {(n, j): v for n, row in table.by_node.items() for j, v in row.items()}
        by_job = {(n, j): v for j, row in table.by_job.items() for n, v in row.items()}
        assert by_node == by_job == expected
        assert all(table.by_node.values()) and all(row for _, row in table.by_job.items())
        for row in table.by_node.values():
            assert len(row) == len(row.keys()) and all(row[job] == row.get(job) for job in row)
            assert all((job in row) is (job in row.keys()) for _, job in step)  # noqa: SIM118


@given(
    st.lists(st.dictionaries(WIDE, st.none() | st.integers(), max_size=3), max_size=60), st.data()
)
def test_a_row_that_nobody_looked_at_is_whole_when_somebody_does(
    steps: list[dict[tuple, int | None]],  # type: ignore[type-arg]
    data: st.DataObject,
) -> None:
    """Entry by entry or all at once, the last of many first or any other before it."""
    made: list[tuple[Pairs[int], dict]] = [(Pairs.of({}), {})]  # type: ignore[type-arg]
    for step in steps:
        table, expected = made[-1]
        made.append((table.changed(step), laid_over(expected, step)))
    for table, expected in data.draw(st.permutations(made)):
        for node in ("n1", "n2"):
            row = table.on(NodeName(node))
            wanted = {job: value for (name, job), value in expected.items() if name == node}
            jobs = [JobKey(Namespace("default"), JobName(f"j{i}")) for i in range(60)]
            assert [row.get(job) for job in jobs] == [wanted.get(job) for job in jobs]
            assert dict(row) == wanted and len(row) == len(wanted)


@given(st.lists(st.dictionaries(PAIRS, st.lists(GROUPS, max_size=3)), max_size=8))
def test_rows_of_assignments_know_their_sums(steps: list[dict[tuple, list[Group]]]) -> None:  # type: ignore[type-arg]
    """What follows change by change is what adding up all of a node or of a job gives."""
    table = Assignments.of({})
    for step in steps:
        table = table.changed(
            {
                pair: Assignment(node=pair[0], job=pair[1], groups=tuple(groups))
                if groups
                else None
                for pair, groups in step.items()
            }
        )
    for node, row in table.by_node.items():
        assert table.on(node).sums() == sums_of(row.values())
    for job, column in table.by_job.items():
        live = [
            slot
            for assignment in column.values()
            for group in assignment.groups
            if group.state is not SlotState.STOPPING
            for slot in group.slots
        ]
        assert table.of_job(job).live == len(live)
        assert all(number > 0 for number in table.of_job(job).kinds.values())
