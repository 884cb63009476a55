"""The questions that CoreDNS and our responder are both asked, and where they may differ.

Records come from our own functions, so what is asked is what a cluster would serve. A difference
has a name; each question that shows it says so, and `docs/dns.md` explains it. A question that
shows another one, or none where one is named, fails the test.
"""

from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass
from itertools import product

import dns.asyncquery
import dns.exception
import dns.message
import dns.rcode

from ozymandias.core.routes import Names, dns_records
from ozymandias.model.job import Container, Job, JobName, Namespace, Port
from ozymandias.model.routing import DnsRecord

DOMAIN = "ozy.internal"
LONG = "j" * 40 + "-" + "x" * 22  # the longest label there is

NS_APEX, SOA_ANYWHERE, ANY_HINFO, EXACT = "ns-apex", "soa-anywhere", "any-hinfo", "exact-kinds"
ANY_LABEL, SLASH_LABEL, OTHER_CLASS = "any-label", "slash-label", "other-class"
STRICT = "strict-packets"
DIFFERENCES = frozenset(
    {NS_APEX, SOA_ANYWHERE, ANY_HINFO, EXACT, ANY_LABEL, SLASH_LABEL, OTHER_CLASS, STRICT}
)
STRICTLY = frozenset(  # packets that we answer with FORMERR, and CoreDNS otherwise
    {
        *("only a header", "marked truncated", "cut before the class", "EDNS promised"),
        *("EDNS twice", "EDNS with an owner", "trailing bytes", "additional address"),
        "an answer in the question",
    }
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    name: str  # with backslash escapes, absolute
    kind: str
    tcp: bool = False
    edns: int | None = None  # size offered
    dnssec: bool = False
    rdclass: str = "IN"
    recursion: bool = True
    difference: str = ""

    def __str__(self) -> str:
        marks = [self.rdclass] * (self.rdclass != "IN") + ["tcp"] * self.tcp + ["do"] * self.dnssec
        marks += [f"edns={self.edns}"] * (self.edns is not None) + ["norec"] * (not self.recursion)
        return " ".join([self.name, self.kind, *marks])


def found_at(
    port: int, name: str, kind: str = "A", address: str = "127.0.0.1"
) -> Callable[[], Awaitable[list[str] | str]]:
    """For `wait_for`: the answers, or the code if there are none."""

    async def ask() -> list[str] | str:
        query = dns.message.make_query(f"{name}.{DOMAIN}", kind)
        try:
            answer = await dns.asyncquery.udp(query, address, port=port, timeout=1)
        except dns.exception.Timeout:
            return "no answer"
        texts = sorted(r.to_text() for rrset in answer.answer for r in rrset)
        return texts or dns.rcode.to_text(answer.rcode())

    return ask


def job_records(
    name: str, namespace: str, addresses: list[str], ports: tuple[int, ...] = ()
) -> Iterator[DnsRecord]:
    """What the node writes for healthy instances of such a job."""
    found = tuple(Port(pod=port, container=port) for port in ports)
    container = Container(name="app", image="x", ports=found)
    job = Job(
        name=JobName(name),
        namespace=Namespace(namespace),
        containers=(container,),
        instances=len(addresses),
    )
    for slot, address in enumerate(addresses):
        yield from dns_records(job, slot, address, Names(domain=DOMAIN))


def records() -> Iterator[DnsRecord]:
    yield from job_records("web", "default", ["10.1.0.1", "10.1.0.2", "10.1.0.3"], (8000, 9000))
    yield from job_records("api", "shop", ["10.2.0.1"], (80,))
    yield from job_records("both", "shop", ["fd00::5", "10.2.0.5", "fd00::6"], (80,))
    yield from job_records("six", "shop", ["fd00::7"])
    yield from job_records("same", "shop", ["10.2.0.9", "10.2.0.9"], (80,))
    yield from job_records("big", "large", [f"10.3.0.{n}" for n in range(120)])
    yield from job_records("wide", "large", [f"10.4.0.{n}" for n in range(40)], (80,))
    yield from job_records("any", "odd", ["10.5.0.1"])
    yield from job_records("other", "odd", ["10.5.0.2"])
    yield from job_records(LONG, "odd", ["10.5.0.3"], (65535,))


THERE = (
    *("web.default", "0.web.default", "2.web.default", "api.shop", "0.api.shop", "both.shop"),
    *("1.both.shop", "six.shop", "same.shop", f"{LONG}.odd", f"0.{LONG}.odd", "other.odd"),
    *("_8000._tcp.web.default", "0._8000._tcp.web.default", "_80._tcp.api.shop"),
    *("_tcp.web.default", "_80._tcp.both.shop", "_80._tcp.same.shop", f"_65535._tcp.{LONG}.odd"),
    *("default", "shop", "odd"),  # empty non-terminals
)
WILD = (
    *("*.default", "*.shop", "0.*.default", "*.web.default", "*.*.shop", "_80._tcp.*.shop"),
    *("*._tcp.web.default", "0._8000.*.web.default", "*.0.web.default", "7.*.default", "web.*"),
)
NOT_THERE = (
    *("nope", "nope.default", "3.web.default", "00.web.default", "web", "0.0.web.default"),
    *("_8001._tcp.web.default", "_8000._udp.web.default", "_8000._tcp.nope.default", "default.web"),
    *("*.nope", "x*.default", "web.default.ozy.internal", r"we\098", r"w\.eb.default", "-.default"),
    *(r"\000.default", r"\255.default", r"a\032b.default", "xn--bcher-kva.default", "w" * 63),
    ".".join(["a" * 60] * 3 + ["b" * 50]),  # as long as a name can be, with the zone
)
KINDS = ("A", "AAAA", "SRV", "TXT", "MX", "NS", "CAA", "HTTPS", "NAPTR", "DS")
FOREIGN = ("www.example.org", "Example.ORG", "internal", "xozy.internal", "ozy.internal.org", "a.b")


def absolute(name: str) -> str:
    return f"{name}.{DOMAIN}." if name else f"{DOMAIN}."


def spellings(name: str) -> tuple[str, str, str]:
    mixed = "".join(c.upper() if i % 3 else c for i, c in enumerate(name))
    return name.upper(), name.title(), mixed


def questions() -> Iterator[Question]:
    for name, kind in product((*THERE, *WILD, *NOT_THERE), KINDS):
        yield Question(name=absolute(name), kind=kind)
    yield from _special()
    for name, kind in product(("web.default", "0.web.default", "nope.default"), ("A", "SRV", "MX")):
        for spelling in spellings(absolute(name)):
            yield Question(name=spelling, kind=kind)
            yield Question(name=spelling, kind=kind, edns=1232)
    for name, kind in product(("web.default", "_80._tcp.wide.large", "nope", ""), ("A", "SRV")):
        yield Question(name=absolute(name), kind=kind, tcp=True)
        yield Question(name=absolute(name), kind=kind, tcp=True, edns=512, dnssec=True)
        yield Question(name=absolute(name), kind=kind, recursion=False)
    sizes = (0, 511, 512, 513, 800, 1231, 1232, 1233, 4096, 65535)
    sized = (("big.large", "A"), ("_80._tcp.wide.large", "SRV"), ("web.default", "A"))
    for (name, kind), size in product((*sized, ("nope", "A")), sizes):
        yield Question(name=absolute(name), kind=kind, edns=size)
        yield Question(name=absolute(name), kind=kind, edns=size, dnssec=True)
    for name, kind in sized:
        yield Question(name=absolute(name), kind=kind)
        yield Question(name=absolute(name), kind=kind, tcp=True)
    for name, kind in product(FOREIGN, ("A", "TXT", "SRV")):
        yield Question(name=name + ".", kind=kind)
        yield Question(name=name + ".", kind=kind, edns=4096)
    for rdclass, name in product(("CH", "HS", "ANY", "NONE"), (absolute("web.default"), "a.b.")):
        yield Question(name=name, kind="A", rdclass=rdclass, difference=OTHER_CLASS)


def _special() -> Iterator[Question]:
    """Where the two are known to differ, and the neighbourhood where they do not."""
    for kind in (*KINDS, "SOA"):
        yield Question(name=absolute(""), kind=kind, difference=NS_APEX if kind == "NS" else "")
    for name in THERE:
        yield Question(name=absolute(name), kind="SOA", difference=SOA_ANYWHERE)
        yield Question(name=absolute(name), kind="ANY", difference=ANY_HINFO)
        has_key = name.split(".")[0].isdigit()
        for kind in ("CNAME", "PTR"):
            yield Question(name=absolute(name), kind=kind, difference="" if has_key else EXACT)
    for name in ("nope", "nope.default"):
        yield Question(name=absolute(name), kind="SOA", difference=SOA_ANYWHERE)
        for kind in ("ANY", "CNAME", "PTR"):
            yield Question(name=absolute(name), kind=kind)
    for kind in ("A", "SRV"):
        yield Question(name=absolute("any.odd"), kind=kind, difference=ANY_LABEL)
        yield Question(name=absolute("any.default"), kind=kind, difference=ANY_LABEL)
        yield Question(name=absolute("web/0.default"), kind=kind, difference=SLASH_LABEL)


def packets() -> dict[str, bytes]:
    """Queries that no ordinary client sends, by what is strange about them."""
    name = b"\3web\7default\3ozy\10internal\0"
    question = name + b"\0\1\0\1"
    opt = b"\0\0\x29\4\xd0\0\0\0\0\0\0"

    def header(second: int = 1, third: int = 0, counts: tuple[int, ...] = (1, 0, 0, 0)) -> bytes:
        return b"\x12\x34" + bytes((second, third)) + b"".join(n.to_bytes(2, "big") for n in counts)

    with_extra = header(counts=(1, 0, 0, 1))
    return {
        "ordinary": header() + question,
        "nothing": b"",
        "half a header": header()[:6],
        "only a header": header(),
        "no question": header(counts=(0, 0, 0, 0)),
        "no question but EDNS": header(counts=(0, 0, 0, 1)) + opt,
        "two questions": header(counts=(2, 0, 0, 0)) + question * 2,
        "an answer": header(0x81) + question,
        "inverse query": header(0x09) + question,
        "status": header(0x11) + question,
        "update": header(0x29) + question,
        "marked truncated": header(0x03) + question,
        "marked authoritative": header(0x05) + question,
        "reserved bit": header(1, 0x40) + question,
        "checking disabled": header(1, 0x10) + question,
        "a code": header(1, 0x05) + question,
        "cut in the name": header() + question[:9],
        "cut before the class": header() + question[:-2],
        "pointer to itself": header() + b"\xc0\x0c\0\1\0\1",
        "pointer onwards": header() + b"\xc0\xff\0\1\0\1",
        "label of 64": header() + b"\x40" + b"a" * 64 + question,
        "name of 256": header() + (b"\x3f" + b"a" * 63) * 4 + b"\0\0\1\0\1",
        "EDNS": with_extra + question + opt,
        "EDNS version 1": with_extra + question + opt[:6] + b"\1" + opt[7:],
        "EDNS with an option": with_extra + question + opt[:-1] + b"\4\xff\xf1\0\0",
        "EDNS promised": with_extra + question,
        "half of EDNS": with_extra + question + opt[:6],
        "EDNS option cut": with_extra + question + opt[:-1] + b"\4\xff\xf1\0\7",
        "EDNS twice": header(counts=(1, 0, 0, 2)) + question + opt * 2,
        "EDNS with an owner": with_extra + question + b"\1a" + opt,
        "trailing bytes": header() + question + b"xyz",
        "additional address": with_extra + question + b"\xc0\x0c\0\1\0\1\0\0\0\5\0\4\1\2\3\4",
        "an answer in the question": header(counts=(1, 1, 0, 0))
        + question
        + b"\xc0\x0c\0\1\0\1\0\0\0\5\0\4\1\2\3\4",
    }
