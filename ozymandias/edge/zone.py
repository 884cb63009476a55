"""The names of one zone and their answers, kept as wire bytes.

As with CoreDNS's etcd plugin, a name stands for everything below it: `web.default.ozy.internal`
has the addresses of `0.web.…` and `1.web.…`. An answer is built once, when it is first asked for
after a change, by dnspython; from then on it is bytes. The owner of its records is a pointer to
the question, so one answer serves every spelling (0x20) of it.
"""

from collections.abc import Iterable
from ipaddress import IPv6Address, ip_address

import dns.flags
import dns.message
import dns.name
import dns.rdataclass
import dns.rdatatype
import dns.rrset
from dns.rdatatype import RdataType

from ozymandias.edge.dns import checked_name
from ozymandias.model.routing import DnsRecord

NEGATIVE_TTL_SECONDS = 5
SRV_PRIORITY = 10  # CoreDNS's default
RECORDS_MAX = 1000  # in one answer
ANSWERS_MAX = 20000  # kept at a time

NO_ERROR, NAME_ERROR = 0, 3
A_RECORD_BYTES = 16  # pointer, type, class, ttl, length, address
AAAA_RECORD_BYTES = 28


class Answer:
    """What follows the question. ``turn`` bytes of it are equal records that may be rotated."""

    __slots__ = ("_next", "counts", "rcode", "sections", "step", "turn")

    def __init__(
        self, rcode: int, counts: tuple[int, int, int], sections: bytes, step: int = 0
    ) -> None:
        self.rcode = rcode
        self.counts = counts  # of the answer, authority and additional sections
        self.sections = sections
        self.step = step
        self.turn = step * counts[0] if counts[0] > 1 else 0
        self._next = 0

    def rotated(self) -> bytes:
        """The sections, each time with another address first."""
        if not self.turn:
            return self.sections
        self._next = start = (self._next + self.step) % self.turn
        sections = self.sections
        return sections[start : self.turn] + sections[:start] + sections[self.turn :]


class Zone:
    """Records of a domain. ``answer`` knows every question about a name in it."""

    def __init__(self, domain: str) -> None:
        self.domain = checked_name(domain)
        self.wire = dns.name.from_text(self.domain + ".").to_wire() or b""
        self.changes = 0
        self._suffix = "." + self.domain
        self._records: dict[str, DnsRecord] = {}
        self._below: dict[str, set[str]] = {}
        self._answers: dict[bytes, Answer] = {}
        self._kept: dict[str, list[bytes]] = {}  # keys of _answers by name

    def __len__(self) -> int:
        return len(self._records)

    # Changing ------------------------------------------------------------------------------

    def put(self, record: DnsRecord) -> None:
        """Records outside the domain are of no concern here."""
        name = record.name
        if not name.endswith(self._suffix):
            return
        self._records[name] = record
        for ancestor in self._changed(name):
            self._below.setdefault(ancestor, set()).add(name)

    def remove(self, name: str) -> None:
        if self._records.pop(name, None) is None:
            return
        for ancestor in self._changed(name):
            below = self._below.get(ancestor, set())
            below.discard(name)
            if not below:
                self._below.pop(ancestor, None)

    def replace(self, records: Iterable[DnsRecord]) -> None:
        """All records at once; what did not change keeps its answers."""
        wanted = {record.name: record for record in records}
        for name in list(self._records):
            if name not in wanted:
                self.remove(name)
        for name, record in wanted.items():
            if self._records.get(name) != record:
                self.put(record)

    def _changed(self, name: str) -> list[str]:
        """Forget the answers of a name and of all above it, which are returned."""
        self.changes += 1
        ancestors = []
        self._forget(name)
        while name != self.domain:
            name = name.partition(".")[2]
            ancestors.append(name)
            self._forget(name)
        return ancestors

    def _forget(self, name: str) -> None:
        for key in self._kept.pop(name, ()):
            self._answers.pop(key, None)

    # Asking --------------------------------------------------------------------------------

    def known(self, question: bytes) -> Answer | None:
        """The fast way: an answer built before. ``question`` is in lower case."""
        return self._answers.get(question)

    def answer(self, question: bytes) -> Answer:
        """For a question (name, type, class; lower case) about a name in the zone."""
        kind = RdataType.make(int.from_bytes(question[-4:-2], "big"))
        name = dns.name.from_wire(question, 0)[0]
        text = name.to_text(omit_final_dot=True)
        records = self._found(text)
        if not records and text != self.domain:
            return self._negative(NAME_ERROR)
        answer = self._build(name, kind, records) or self._negative(NO_ERROR)
        if len(self._answers) >= ANSWERS_MAX:
            self._answers.clear()
            self._kept.clear()
        self._answers[question] = answer
        self._kept.setdefault(text, []).append(question)
        return answer

    def _found(self, name: str) -> list[DnsRecord]:
        below = self._below.get(name)
        if below:
            return [self._records[n] for n in sorted(below)[:RECORDS_MAX]]
        record = self._records.get(name)
        return [record] if record else []

    def _build(
        self, name: dns.name.Name, kind: RdataType, records: list[DnsRecord]
    ) -> Answer | None:
        if kind is RdataType.SOA and name == dns.name.from_text(self.domain):
            return Answer(NO_ERROR, (1, 0, 0), self._soa())
        if kind is RdataType.ANY:
            # RFC 8482: an answer that is no use to those who want a large one.
            return self._wire(
                name, kind, [dns.rrset.from_text(name, 5, "IN", "HINFO", "RFC8482 ''")]
            )
        if kind is RdataType.SRV:
            return self._services(name, records)
        if kind not in (RdataType.A, RdataType.AAAA):
            return None
        is_v6 = kind is RdataType.AAAA
        addresses = {
            r.address: r.ttl_seconds
            for r in records
            if isinstance(ip_address(r.address), IPv6Address) is is_v6
        }
        if not addresses:
            return None
        ttl = min(addresses.values())
        rrset = dns.rrset.from_text_list(name, ttl, "IN", kind, list(addresses))
        return self._wire(name, kind, [rrset], step=AAAA_RECORD_BYTES if is_v6 else A_RECORD_BYTES)

    def _services(self, name: dns.name.Name, records: list[DnsRecord]) -> Answer | None:
        if not records:
            return None
        weight = max(1, 100 // len(records))
        texts = [f"{SRV_PRIORITY} {weight} {r.port} {r.name}." for r in records]
        rrset = dns.rrset.from_text_list(
            name, min(r.ttl_seconds for r in records), "IN", RdataType.SRV, texts
        )
        additional = [
            dns.rrset.from_text(
                r.name + ".", r.ttl_seconds, "IN", "AAAA" if ":" in r.address else "A", r.address
            )
            for r in records
        ]
        return self._wire(name, RdataType.SRV, [rrset], additional)

    def _wire(
        self,
        name: dns.name.Name,
        kind: RdataType,
        answer: list[dns.rrset.RRset],
        additional: list[dns.rrset.RRset] | None = None,
        step: int = 0,
    ) -> Answer:
        message = dns.message.make_response(dns.message.make_query(name, kind))
        message.answer = answer
        message.additional = additional or []
        wire = message.to_wire(max_size=65535)
        question_end = 12 + len(name.to_wire() or b"") + 4
        counts = tuple(int.from_bytes(wire[i : i + 2], "big") for i in (6, 8, 10))
        return Answer(NO_ERROR, (counts[0], counts[1], counts[2]), wire[question_end:], step)

    def _negative(self, rcode: int) -> Answer:
        return Answer(rcode, (0, 1, 0), self._soa())

    def _soa(self) -> bytes:
        """The zone's SOA record as it stands in any section; no name in it is compressed."""
        server = b"\x02ns\x03dns" + self.wire
        mailbox = b"\x0ahostmaster" + self.wire
        serial = self.changes & 0xFFFFFFFF
        numbers = (serial, 7200, 1800, 86400, NEGATIVE_TTL_SECONDS)
        data = server + mailbox + b"".join(n.to_bytes(4, "big") for n in numbers)
        ttl = NEGATIVE_TTL_SECONDS.to_bytes(4, "big")
        return self.wire + b"\0\6\0\1" + ttl + len(data).to_bytes(2, "big") + data
