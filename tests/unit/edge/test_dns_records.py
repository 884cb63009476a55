"""Records of the store on their way into the zone: event by event, held when all vanish at once."""

import asyncio
import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ozymandias.daemon.dns import Records
from ozymandias.edge.forwarder import Forwarder
from ozymandias.edge.responder import Responder
from ozymandias.edge.wire import name_wire, question_end
from ozymandias.edge.zone import Zone
from ozymandias.model.routing import DnsRecord
from ozymandias.ports import KV, Event
from ozymandias.store import keys
from ozymandias.store.names import value_of

HOLD_SECONDS = 30.0


def entry(job: int, slot: int, address: str = "10.0.0.1") -> DnsRecord:
    return DnsRecord(name=f"{slot}.j{job}.default.ozy.internal", address=address)


def event(record: DnsRecord, *, deleted: bool = False, value: bytes | None = None) -> Event:
    key = keys.dns(record.name)
    found = b"" if deleted else value_of(record) if value is None else value
    kv = KV(key, found, 1, 1, 1, 0)
    return Event(kv=kv, deleted=deleted)


def pair(record: DnsRecord) -> tuple[bytes, bytes]:
    return keys.dns(record.name), value_of(record)


@pytest.fixture
def zone() -> Zone:
    return Zone("ozy.internal")


@pytest.fixture
def records(zone: Zone) -> Records:
    return Records(zone, hold_seconds=HOLD_SECONDS)


def code(zone: Zone, name: str) -> int:
    responder = Responder(zone, Forwarder(()))
    data = b"\0\0\1\0\0\1\0\0\0\0\0\0" + name_wire(name) + b"\0\1\0\1"
    reply = responder.reply(data, question_end(data), False)
    assert reply is not None
    return reply[3] & 15


async def test_unknown_until_read(zone: Zone, records: Records):
    """Before the first reading a name is SERVFAIL, not missing; afterwards it is missing."""
    name = "0.j1.default.ozy.internal"
    assert code(zone, name) == 2
    records.take_all([])
    assert code(zone, name) == 3
    records.take_events([event(entry(1, 0))])
    assert code(zone, name) == 0


async def test_junk_replaces_a_record(zone: Zone, records: Records):
    """A value that makes no sense takes its record away, and no other."""
    records.take_all([pair(entry(1, 0)), pair(entry(1, 1))])
    records.take_events([event(entry(1, 0), value=b"junk")])
    assert len(zone) == 1
    records.take_events([event(entry(1, 0))])
    assert len(zone) == 2


async def test_held_when_most_vanish(zone: Zone, records: Records):
    """Most jobs losing everything in one batch is not believed, for a while; one job is."""
    now = asyncio.get_running_loop().time()
    records.take_all(pair(entry(job, slot)) for job in range(4) for slot in range(2))
    records.take_events([event(entry(0, slot), deleted=True) for slot in range(2)])
    assert len(zone) == 6
    gone = [event(entry(job, slot), deleted=True) for job in (1, 2) for slot in range(2)]
    records.take_events(gone)
    assert len(zone) == 6  # held
    records.take_events([event(entry(1, 5))])  # one comes back, elsewhere
    assert code(zone, "5.j1.default.ozy.internal") == 0
    assert code(zone, "0.j1.default.ozy.internal") == 3
    assert len(zone) == 5
    records.release(now + HOLD_SECONDS - 1)
    assert len(zone) == 5
    records.release(now + HOLD_SECONDS + 10)
    assert len(zone) == 3


async def test_held_over_a_new_listing(zone: Zone, records: Records):
    """A store that comes back empty does not take the names away at once."""
    records.take_all(pair(entry(job, 0)) for job in range(3))
    records.take_all([])
    records.take_all([])
    assert len(zone) == 3
    records.take_all(pair(entry(job, 0, "10.9.9.9")) for job in range(3))
    records.release(asyncio.get_running_loop().time() + HOLD_SECONDS * 2)
    assert len(zone) == 3


@settings(max_examples=60, deadline=None)
@given(
    st.lists(
        st.lists(st.tuples(st.integers(0, 3), st.integers(0, 2), st.booleans()), max_size=6),
        max_size=8,
    )
)
def test_same_as_read_anew(batches: list[list[tuple[int, int, bool]]]):
    """After any batches, once nothing is held, the zone is what a fresh reading would make it."""

    async def play() -> None:
        zone, fresh = Zone("ozy.internal"), Zone("ozy.internal")
        records = Records(zone, hold_seconds=0.0)
        records.take_all([])
        expected: dict[str, DnsRecord] = {}
        for batch in batches:
            events = []
            for job, slot, deleted in batch:
                record = entry(job, slot, f"10.0.{job}.{slot}")
                events.append(event(record, deleted=deleted))
                if deleted:
                    expected.pop(record.name, None)
                else:
                    expected[record.name] = record
            records.take_events(events)
            records.release(asyncio.get_running_loop().time() + 1)
        fresh.replace(expected.values())
        assert zone._records == fresh._records and zone._below == fresh._below

    asyncio.run(play())


async def test_a_change_does_not_cost_the_zone(zone: Zone, records: Records):
    """A thousand single changes to 20,000 records take far less than a second of the processor, not
    a minute, and leave the answers of others as they are."""
    records.take_all(pair(entry(job, slot)) for job in range(4000) for slot in range(5))
    assert code(zone, "j1.default.ozy.internal") == 0
    question = name_wire("j1.default.ozy.internal") + b"\0\1\0\1"
    before = zone.known(question)
    started = time.process_time()  # whatever else the machine is busy with
    for number in range(1000):
        records.take_events([event(entry(100 + number, 0, f"10.7.{number >> 8}.{number & 255}"))])
    assert time.process_time() - started < 3.0
    assert before is not None and zone.known(question) is before and before.is_live
