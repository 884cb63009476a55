"""Records as CoreDNS keeps them, and the answers a zone makes of them."""

import dns.message
import dns.rcode
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ozymandias.edge import dns as layout
from ozymandias.edge.forwarder import Forwarder
from ozymandias.edge.responder import REFUSALS_PER_SECOND_MAX, Responder
from ozymandias.edge.wire import question_end
from ozymandias.edge.zone import Zone
from ozymandias.model.routing import DnsRecord
from ozymandias.store import keys
from ozymandias.store.names import value_of


def record(name: str, address: str, port: int = 0, ttl: int = 5) -> DnsRecord:
    return DnsRecord(name=f"{name}.ozy.internal", address=address, port=port, ttl_seconds=ttl)


def ask(responder: Responder, name: str, kind: str = "A", **more) -> dns.message.Message:
    query = dns.message.make_query(name, kind, **more)
    data = query.to_wire()
    end, early = responder.refuse_early(data, "127.0.0.1")
    wire = early if not end else responder.reply(data, end, False)
    assert wire is not None
    answer = dns.message.from_wire(wire)
    assert query.is_response(answer)
    return answer


def texts(answer: dns.message.Message) -> list[str]:
    return sorted(rdata.to_text() for rrset in answer.answer for rdata in rrset)


@pytest.fixture
def responder() -> Responder:
    zone = Zone("ozy.internal")
    for slot, address in enumerate(("10.1.0.1", "10.1.0.2", "10.1.0.3")):
        zone.put(record(f"{slot}.web.default", address))
        zone.put(record(f"{slot}._8000._tcp.web.default", address, port=8000))
    zone.put(record("0.db.default", "fd00::5"))
    return Responder(zone, Forwarder(()))


def test_layout_there_and_back():
    """A record's key and value are those that CoreDNS reads, and read back as the same record."""
    entry = record("0._80._tcp.web.default", "10.1.2.3", port=80)
    key, value = keys.dns(entry.name), value_of(entry)
    assert key == b"/skydns/internal/ozy/default/web/_tcp/_80/0"
    assert value == b'{"host": "10.1.2.3", "port": 80, "ttl": 5}'
    assert layout.record_of(key, value) == entry


@pytest.mark.parametrize(
    ("key", "value"),
    [
        (b"/other/internal/x", b'{"host":"10.0.0.1"}'),
        (b"/skydns/", b'{"host":"10.0.0.1"}'),
        (b"/skydns/internal//x", b'{"host":"10.0.0.1"}'),
        (b"/skydns/internal/a.b", b'{"host":"x"}'),
        (b"/skydns/internal/*", b'{"host":"10.0.0.1"}'),
        (b"/skydns/internal/\xff", b'{"host":"10.0.0.1"}'),
        (b"/skydns/internal/" + b"x" * 64, b'{"host":"10.0.0.1"}'),
        (b"/skydns" + b"/long" * 60, b'{"host":"10.0.0.1"}'),
        (b"/skydns/internal/x", b"not json"),
        (b"/skydns/internal/x", b"[]"),
        (b"/skydns/internal/x", b"{}"),
        (b"/skydns/internal/x", b'{"host":"example.org"}'),
        (b"/skydns/internal/x", b'{"host":"10.0.0.1","port":70000}'),
        (b"/skydns/internal/x", b'{"host":"10.0.0.1","port":"80"}'),
        (b"/skydns/internal/x", b'{"host":"10.0.0.1","ttl":-1}'),
    ],
)
def test_nonsense_is_no_record(key: bytes, value: bytes):
    """A key or value that makes no sense is a ValueError and nothing else."""
    with pytest.raises(ValueError):
        layout.record_of(key, value)


def test_addresses_of_job_and_instance(responder: Responder):
    """The job's name has all addresses once, the instance's its own."""
    assert texts(ask(responder, "web.default.ozy.internal")) == ["10.1.0.1", "10.1.0.2", "10.1.0.3"]
    assert texts(ask(responder, "1.web.default.ozy.internal")) == ["10.1.0.2"]
    assert texts(ask(responder, "db.default.ozy.internal", "AAAA")) == ["fd00::5"]
    answer = ask(responder, "web.default.ozy.internal")
    assert answer.answer[0].ttl == 5 and answer.flags & 0x0400


def test_service_records(responder: Responder):
    """SRV: port, equal weights, a target per instance, and its address beside it."""
    answer = ask(responder, "_8000._tcp.web.default.ozy.internal", "SRV", use_edns=0)
    assert texts(answer) == [
        f"10 33 8000 {slot}._8000._tcp.web.default.ozy.internal." for slot in range(3)
    ]
    extra = {rrset.name.to_text(): rrset[0].to_text() for rrset in answer.additional}
    assert extra["1._8000._tcp.web.default.ozy.internal."] == "10.1.0.2"


def test_what_is_not_there(responder: Responder):
    """NODATA for another type, NXDOMAIN for another name, both with the zone's SOA."""
    for name, kind, rcode in (
        ("web.default.ozy.internal", "AAAA", "NOERROR"),
        ("web.default.ozy.internal", "TXT", "NOERROR"),
        ("web.default.ozy.internal", "HTTPS", "NOERROR"),
        ("ozy.internal", "MX", "NOERROR"),
        ("nope.default.ozy.internal", "A", "NXDOMAIN"),
        ("3.web.default.ozy.internal", "A", "NXDOMAIN"),
        ("*.nope.ozy.internal", "A", "NXDOMAIN"),
        ("x*.default.ozy.internal", "A", "NXDOMAIN"),
    ):
        answer = ask(responder, name, kind)
        assert dns.rcode.to_text(answer.rcode()) == rcode, (name, kind)
        assert not answer.answer
        assert answer.authority[0].name.to_text() == "ozy.internal."
        assert answer.authority[0][0].rdtype.name == "SOA"
    assert ask(responder, "ozy.internal", "SOA").answer[0][0].rdtype.name == "SOA"
    assert ask(responder, "web.default.ozy.internal", "ANY").answer[0][0].rdtype.name == "HINFO"


def test_spelling_is_kept(responder: Responder):
    """The answer repeats the question in the client's own mix of cases."""
    name = "wEb.DeFault.oZY.internal."
    answer = ask(responder, name)
    assert answer.question[0].name.to_text() == name
    assert answer.answer[0].name.to_text() == name
    assert len(texts(answer)) == 3


def test_rotation(responder: Responder):
    """Each address comes first in turn, and none is lost."""
    firsts = set()
    for _ in range(6):
        wire_order = [r.to_text() for r in ask(responder, "web.default.ozy.internal").answer[0]]
        assert sorted(wire_order) == ["10.1.0.1", "10.1.0.2", "10.1.0.3"]
        firsts.add(wire_order[0])
    assert firsts == {"10.1.0.1", "10.1.0.2", "10.1.0.3"}


def test_answers_follow_changes(responder: Responder):
    """A change shows in the next answer, of the name itself and of those above it."""
    zone = responder.zone
    name = "web.default.ozy.internal"
    assert len(texts(ask(responder, name))) == 3
    zone.remove("1.web.default.ozy.internal")
    zone.remove("1._8000._tcp.web.default.ozy.internal")
    assert texts(ask(responder, name)) == ["10.1.0.1", "10.1.0.3"]
    assert ask(responder, "1." + name).rcode() == dns.rcode.NXDOMAIN
    zone.put(record("1.web.default", "10.1.0.9"))
    assert texts(ask(responder, name)) == ["10.1.0.1", "10.1.0.3", "10.1.0.9"]
    zone.replace([record("0.web.default", "10.1.0.1")])
    assert texts(ask(responder, name)) == ["10.1.0.1"]
    zone.put(DnsRecord(name="x.other.internal", address="10.9.9.9"))
    assert len(zone) == 1
    zone.replace([])
    assert ask(responder, name).rcode() == dns.rcode.NXDOMAIN
    assert ask(responder, "ozy.internal").rcode() == dns.rcode.NOERROR


def test_truncation():
    """Beyond what the client takes over UDP there is what fits, and a mark; TCP has it all."""
    zone = Zone("ozy.internal")
    for slot in range(200):
        zone.put(record(f"{slot}.big.default", f"10.2.0.{slot}"))
    responder = Responder(zone, Forwarder(()))
    query = dns.message.make_query("big.default.ozy.internal", "A")
    for edns in (None, 512, 1232, 65535):
        if edns:
            query.use_edns(0, payload=edns)
        data = query.to_wire()
        wire = responder.reply(data, question_end(data), False)
        assert wire is not None and len(wire) <= 1232
        answer = dns.message.from_wire(wire)
        assert answer.flags & 0x0200 and 20 < len(texts(answer)) < 200
        assert (answer.edns == 0) is bool(edns)
        wire = responder.reply(data, question_end(data), True)
        assert wire is not None
        assert len(texts(dns.message.from_wire(wire))) == 200


def test_strangers_are_refused(responder: Responder):
    """Only private and loopback addresses get answers; the others a short refusal."""
    data = dns.message.make_query("web.default.ozy.internal", "A").to_wire()
    for address in ("127.0.0.1", "10.89.64.7", "192.168.1.1", "::1", "fd00::1", "::ffff:10.0.0.1"):
        assert responder.refuse_early(data, address)[0]
    for address in ("8.8.8.8", "2001:4860:4860::8888", "::ffff:8.8.8.8", "nonsense"):
        end, wire = responder.refuse_early(data, address)
        assert end == 0 and wire is not None and len(wire) <= len(data)
        assert dns.message.from_wire(wire).rcode() == dns.rcode.REFUSED


def test_edns_version(responder: Responder):
    """An unknown EDNS version gets BADVERS."""
    answer = ask(responder, "web.default.ozy.internal", use_edns=1)
    assert answer.rcode() == dns.rcode.BADVERS


@given(st.binary(max_size=600))
def test_any_bytes(data: bytes):
    """No packet raises, and what is answered can be read."""
    zone = Zone("ozy.internal")
    zone.put(record("0.web.default", "10.1.0.1"))
    responder = Responder(zone, Forwarder(()))
    end, wire = responder.refuse_early(data, "127.0.0.1")
    if end:
        wire = responder.reply(data, end, False)
    if wire:
        dns.message.from_wire(wire)
        assert len(wire) <= 1232


def test_refusals_are_few():
    """However many strangers ask, they hear of us a bounded number of times a second."""
    responder = Responder(Zone("ozy.internal"), Forwarder(()))
    data = dns.message.make_query("web.default.ozy.internal", "ANY").to_wire()
    told = [responder.refuse_early(data, f"8.8.{n >> 8}.{n & 255}")[1] for n in range(5000)]
    answers = [wire for wire in told if wire]
    assert len(answers) <= 2 * REFUSALS_PER_SECOND_MAX  # the second may change meanwhile
    assert {len(wire) for wire in answers} == {12}


def test_answers_that_fit_no_message():
    """More services than a message holds are cut at a record, over TCP too."""
    zone = Zone("ozy.internal")
    for slot in range(1500):
        zone.put(record(f"{slot}.{'x' * 60}.default", f"10.2.{slot >> 8}.{slot & 255}", port=80))
    responder = Responder(zone, Forwarder(()))
    data = dns.message.make_query("default.ozy.internal", "SRV").to_wire()
    wire = responder.reply(data, question_end(data), True)
    assert wire is not None and 60000 < len(wire) <= 65535
    answer = dns.message.from_wire(wire)
    assert answer.flags & 0x0200 and len(texts(answer)) > 500
