"""The names of one zone and their answers, kept as wire bytes.

As with CoreDNS's etcd plugin, a name stands for everything below it: `web.default.ozy.internal`
has the addresses of `0.web.…` and `1.web.…`; and a label `*` stands for any one. An answer is built
once, when it is first asked for after a change; from then on it is bytes. The owner of its records
is a pointer to the question, so one answer serves every spelling (0x20) of it. A change costs
as much as its name has labels, however large the zone is.
"""

from collections.abc import Iterable
from heapq import nsmallest
from itertools import accumulate

from ozymandias.edge import wire
from ozymandias.edge.dns import checked_name
from ozymandias.edge.wire import NAME_ERROR, NO_ERROR
from ozymandias.model.routing import DnsRecord

NEGATIVE_TTL_SECONDS = 5
RECORDS_MAX = 1000  # in one answer
ANSWERS_MAX = 20000  # kept at a time
ANY_HINFO = b"\x07RFC8482\0"  # RFC 8482: no use to those who want a large answer

_OWNER = wire.pointer(wire.HEADER_BYTES)


class Answer:
    """What follows the question: answer, authority, additional. Addresses come in turns."""

    __slots__ = ("_next", "counts", "ends", "is_live", "rcode", "sections", "step", "turn")

    def __init__(
        self,
        rcode: int,
        answers: list[bytes],
        additional: list[bytes] | None = None,
        *,
        authority: bytes = b"",
        rotates: bool = False,
    ) -> None:
        records = [*answers, *(additional or ())]
        self.rcode = rcode
        self.counts = (len(answers), 1 if authority else 0, len(additional or ()))
        self.sections = b"".join(records) + authority
        self.ends = tuple(accumulate(map(len, records)))  # of each record; where it may be cut
        self.step = len(answers[0]) if rotates and len(answers) > 1 else 0
        self.turn = self.step * len(answers)
        self.is_live = True  # until a change makes it untrue
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
        self.wire = wire.name_wire(self.domain)
        self.is_known = True  # False while nobody has told us the records yet
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
        if not name.endswith(self._suffix) or self._records.get(name) == record:
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
        for name in self._records.keys() - wanted.keys():
            self.remove(name)
        for record in wanted.values():
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
            if answer := self._answers.pop(key, None):
                answer.is_live = False

    # Asking --------------------------------------------------------------------------------

    def has(self, question: bytes) -> bool:
        """In the zone: its wire form is the name's end, and begins at a label."""
        name = question[:-4]
        if not name.endswith(self.wire):
            return False
        start = len(name) - len(self.wire)
        position = 0
        while position < start:
            position += name[position] + 1
        return position == start

    def known(self, question: bytes) -> Answer | None:
        """The fast way: an answer built before. ``question`` is in lower case."""
        return self._answers.get(question)

    def answer(self, question: bytes) -> Answer:
        """For a question (name, type, class; lower case) about a name in the zone."""
        text = wire.name_text(question)
        if text is None:
            return self._negative(question, NAME_ERROR)
        place = text.rpartition("*.")[2]  # below the last wildcard; the name itself without one
        found = self._found(text) if place == text else self._matching(text, place)
        if found is None and text != self.domain:
            return self._negative(question, NAME_ERROR)
        answer = self._build(question, text, found or []) or self._negative(question, NO_ERROR)
        if len(self._answers) >= ANSWERS_MAX:
            for kept in self._answers.values():
                kept.is_live = False
            self._answers.clear()
            self._kept.clear()
        self._answers[question] = answer
        self._kept.setdefault(place, []).append(question)
        return answer

    def _found(self, name: str) -> list[DnsRecord] | None:
        below = self._below.get(name)
        if below:
            return [self._records[n] for n in nsmallest(RECORDS_MAX, below)]
        record = self._records.get(name)
        return [record] if record else None

    def _matching(self, name: str, place: str) -> list[DnsRecord] | None:
        """Of what is below ``place``, the records that a name with `*` in it stands for."""
        below = self._below.get(place)
        if not below:
            return [] if place in self._records else None
        wanted = name.split(".")[::-1]
        found = []
        for candidate in sorted(below):
            labels = candidate.split(".")[::-1]
            if len(labels) >= len(wanted) and all(
                w in ("*", label) for w, label in zip(wanted, labels, strict=False)
            ):
                found.append(self._records[candidate])
                if len(found) == RECORDS_MAX:
                    break
        return found

    def _build(self, question: bytes, name: str, records: list[DnsRecord]) -> Answer | None:
        kind = int.from_bytes(question[-4:-2], "big")
        if kind == wire.SOA and name == self.domain:
            return Answer(NO_ERROR, [self._soa(question)])
        if not records:
            return None
        if kind == wire.ANY:
            ttl = NEGATIVE_TTL_SECONDS
            return Answer(NO_ERROR, [wire.record(_OWNER, wire.HINFO, ttl, ANY_HINFO)])
        if kind == wire.SRV:
            start = wire.HEADER_BYTES + len(question)
            return Answer(NO_ERROR, *wire.service_records(_OWNER, records, start))
        if kind not in (wire.A, wire.AAAA):
            return None
        is_v6 = kind == wire.AAAA
        found = [r for r in records if (":" in r.address) is is_v6]
        if not found:
            return None
        ttl = min(r.ttl_seconds for r in found)
        addresses = dict.fromkeys(r.address for r in found)
        answers = [wire.address_record(_OWNER, address, ttl) for address in addresses]
        return Answer(NO_ERROR, answers, rotates=True)

    def _negative(self, question: bytes, rcode: int) -> Answer:
        return Answer(rcode, [], authority=self._soa(question))

    def _soa(self, question: bytes) -> bytes:
        """The zone's SOA record; its names point to the end of the question's."""
        zone = wire.pointer(wire.HEADER_BYTES + len(question) - 4 - len(self.wire))
        return wire.soa_record(zone, self.changes, NEGATIVE_TTL_SECONDS)
