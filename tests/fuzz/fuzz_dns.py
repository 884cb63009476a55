"""Packets made to break the DNS responder, sent to it over a real socket.

    python -m tests.fuzz.fuzz_dns --count 100000 --seed 1

Good queries, queries with a few bytes changed, cut, doubled or spliced, and noise. Every answer is
judged by a model of its own: a list of records that is searched label by label, and dnspython's
reading of the packets. What we answer must be right, and what is a good query must be answered.
A failure prints the packet; the seed gives it again.
"""

import argparse
import random
import re
import socket
import time
from collections import Counter
from dataclasses import dataclass, field

import dns.exception
import dns.flags
import dns.message
import dns.opcode
import dns.rcode

from ozymandias.edge.dns_sockets import bind_udp
from ozymandias.edge.forwarder import Forwarder
from ozymandias.edge.responder import Responder
from ozymandias.edge.zone import Zone
from ozymandias.model.routing import DnsRecord

HERE = "127.0.0.1"
DOMAIN = "ozy.internal"
RECORDS = (
    *(DnsRecord(name=f"{n}.web.default.{DOMAIN}", address=f"10.1.0.{n}") for n in range(3)),
    *(
        DnsRecord(name=f"{n}._80._tcp.web.default.{DOMAIN}", address=f"10.1.0.{n}", port=80)
        for n in range(3)
    ),
    *(DnsRecord(name=f"{n}.big.default.{DOMAIN}", address=f"10.2.0.{n}") for n in range(100)),
    DnsRecord(name=f"0.six.shop.{DOMAIN}", address="fd00::1"),
)
NAMES = (
    *("web.default", "0.web.default", "_80._tcp.web.default", "big.default", "six.shop"),
    *("default", "*.default", "0.*.default", "nope", "any.default"),
)
KINDS = ("A", "AAAA", "SRV", "TXT", "ANY", "SOA", "NS", "HTTPS")
QUERIES = 1000  # good ones, to begin with
BOUND_PLAIN, BOUND_EDNS = 512, 1232


@dataclass(slots=True)
class Fuzz:
    """One run. ``changes``: whether records come and go meanwhile, so that kept answers age."""

    seed: int
    zone: Zone = field(default_factory=lambda: Zone(DOMAIN))
    records: list[DnsRecord] = field(default_factory=list)
    codes: Counter[str] = field(default_factory=Counter)

    def run(self, count: int) -> Counter[str]:
        """How often each code was answered."""
        dice = random.Random(self.seed)
        queries = [self.query(dice)[2:] for _ in range(QUERIES)]
        responder = Responder(self.zone, Forwarder(()))
        self.replace(list(RECORDS))
        (server,) = bind_udp([(HERE, 0)])
        with server, socket.socket(type=socket.SOCK_DGRAM) as client:
            server.setblocking(False)
            client.setblocking(False)
            client.connect(server.getsockname())
            for number in range(count):
                if number % 1000 == 999:
                    self.replace(dice.sample(RECORDS, dice.randrange(1, len(RECORDS))))
                good = dice.randbytes(2) + dice.choice(queries)
                packet = (
                    good if number % 8 == 0 else mutated(dice, good, b"xx" + dice.choice(queries))
                )
                client.send(packet)
                responder.read_udp(server)
                try:
                    answer = client.recv(65535)
                except BlockingIOError:
                    answer = b""
                try:
                    self.judge(packet, answer, is_good=packet is good)
                except Exception as error:
                    text = f"seed {self.seed}, packet {number}: {packet.hex()} -> {answer.hex()}"
                    raise AssertionError(text) from error
        return self.codes

    def replace(self, records: list[DnsRecord]) -> None:
        self.records = records
        self.zone.replace(records)

    @staticmethod
    def query(dice: random.Random) -> bytes:
        name = f"{dice.choice(NAMES)}.{DOMAIN}" if dice.random() < 0.9 else "www.example.org"
        if dice.random() < 0.5:
            name = "".join(dice.choice((c, c.upper())) for c in name)
        query = dns.message.make_query(name, dice.choice(KINDS), id=0)
        if dice.random() < 0.5:
            flags = dns.flags.DO if dice.random() < 0.5 else 0
            query.use_edns(0, flags, dice.choice((0, 512, 800, 1232, 4096, 65535)))
        return query.to_wire()

    # Judging ---------------------------------------------------------------------------------

    def judge(self, packet: bytes, answer: bytes, *, is_good: bool) -> None:
        if len(packet) < 12 or packet[2] & 0x80:
            assert not answer, "an answer to what is no question"
            self.codes["silence"] += 1
            return
        assert answer and answer[:2] == packet[:2] and answer[2] & 0x80, "no answer of ours"
        if len(answer) == 12:
            assert answer[4:] == bytes(8) and not is_good
            self.codes[dns.rcode.to_text(dns.rcode.Rcode(answer[3] & 15))] += 1
            assert answer[3] & 15 in (dns.rcode.FORMERR, dns.rcode.NOTIMP)
            return
        reply = dns.message.from_wire(answer)
        code = dns.rcode.to_text(reply.rcode())
        self.codes[code] += 1
        assert len(answer) <= (BOUND_EDNS if reply.edns >= 0 else BOUND_PLAIN), "too large"
        if code not in ("NOERROR", "NXDOMAIN"):
            assert not is_good or code == "REFUSED", f"a good query got {code}"
            assert not reply.answer and not reply.authority
            assert len(answer) <= len(packet) + 11
            return
        query = dns.message.from_wire(packet)
        assert query.opcode() == dns.opcode.QUERY and len(query.question) == 1
        assert not query.answer and not query.authority
        asked, heard = query.question[0], reply.question[0]
        assert asked.name.labels == heard.name.labels, "another spelling"
        assert (asked.rdtype, asked.rdclass) == (heard.rdtype, heard.rdclass) and asked.rdclass == 1
        self.judge_answer(query, reply, code)

    def judge_answer(
        self, query: dns.message.Message, reply: dns.message.Message, code: str
    ) -> None:
        labels = [label.lower() for label in query.question[0].name.labels[:-1]]
        found = self.found(labels)
        kind = query.question[0].rdtype.name
        assert (code == "NXDOMAIN") is (found is None), f"{code}, and {found}"
        expected = {
            "A": {r.address for r in found or () if ":" not in r.address},
            "AAAA": {r.address for r in found or () if ":" in r.address},
            "SRV": {f"{r.name}. {r.port}" for r in found or ()},
        }.get(kind)
        heard = {
            f"{r.target} {r.port}" if kind == "SRV" else r.to_text()
            for rrset in reply.answer
            for r in rrset
        }
        if reply.flags & dns.flags.TC:
            assert expected is not None and heard <= expected
        elif expected is not None:
            assert heard == expected
        else:
            assert {rrset.rdtype.name for rrset in reply.answer} <= {"HINFO", "SOA"}
        assert reply.flags & dns.flags.AA

    def found(self, labels: list[bytes]) -> list[DnsRecord] | None:
        """None where there is no such name."""
        zone = DOMAIN.encode().split(b".")
        assert labels[-len(zone) :] == zone, "not our zone"
        if not all(re.fullmatch(rb"\*|[a-z0-9_-]+", label) for label in labels):
            return None
        wanted = labels[::-1]
        fixed = wanted[: wanted.index(b"*")] if b"*" in wanted else wanted
        entries = [(r.name.encode().split(b".")[::-1], r) for r in self.records]
        under = [e for e in entries if e[0][: len(fixed)] == fixed and len(e[0]) > len(fixed)]
        if b"*" not in wanted:
            under = under or [e for e in entries if e[0] == wanted]
        elif not under and any(e[0] == fixed for e in entries):
            return []
        if not under:
            return [] if wanted == zone[::-1] else None
        return [
            record
            for name, record in under
            if len(name) >= len(wanted)
            and all(w in (b"*", n) for w, n in zip(wanted, name, strict=False))
        ]


def mutated(dice: random.Random, packet: bytes, other: bytes) -> bytes:
    """A packet that is probably not in order any more."""
    data = bytearray(packet)
    for _ in range(dice.choice((1, 1, 1, 2, 4))):
        place = dice.randrange(len(data) + 1)
        match dice.randrange(9):
            case 0:
                data = bytearray(dice.randbytes(dice.randrange(100)))
            case 1:
                del data[place:]
            case 2:
                data[place:place] = dice.randbytes(dice.randrange(1, 20))
            case 3:
                data[place:] = other[place:]
            case 4:
                data += data[12:] * dice.randrange(1, 3)
            case 5 if len(data) >= 12:
                data[dice.randrange(2, 12)] = dice.choice((0, 1, 2, 16, 128, 255))
            case 6 if len(data) > 12:  # lengths and pointers
                data[dice.randrange(12, len(data))] = dice.choice((0, 1, 63, 64, 0xC0, 0xFF))
            case 7 if len(data) > 12:
                data[dice.randrange(12, len(data))] ^= 0x20
            case _ if data:
                data[dice.randrange(len(data))] ^= 1 << dice.randrange(8)
    return bytes(data[:1400])


def main() -> None:
    parser = argparse.ArgumentParser(description="Fuzz the DNS responder.")
    parser.add_argument("--count", type=int, default=100_000)
    parser.add_argument("--seed", type=int, default=1)
    arguments = parser.parse_args()
    started = time.monotonic()
    codes = Fuzz(seed=arguments.seed).run(arguments.count)
    took = time.monotonic() - started
    told = ", ".join(f"{code} {number}" for code, number in codes.most_common())
    print(f"dns: {arguments.count} packets, seed {arguments.seed}, {took:.0f} s: {told}")


if __name__ == "__main__":
    main()
