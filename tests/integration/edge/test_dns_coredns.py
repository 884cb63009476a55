"""Real CoreDNS on real etcd: it answers from our keys, and our responder answers as it does."""

import asyncio
import re
import socket
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import dns.asyncquery
import dns.exception
import dns.flags
import dns.message
import dns.rcode
import pytest

from ozymandias.ports import Lease
from ozymandias.store.etcd import EtcdStore
from ozymandias.store.names import delete_records, put_records
from tests.coredns_server import CoreDns, free_port
from tests.etcd_server import EtcdCluster
from tests.integration.edge.dns_questions import (
    DIFFERENCES,
    STRICT,
    STRICTLY,
    Question,
    found_at,
    packets,
    questions,
    records,
)
from tests.integration.edge.test_dns_responder import resolving
from tests.integration.edge.test_processes import connected, process, wait_for

HERE = "127.0.0.1"
AT_ONCE = 16
DOCUMENT = Path(__file__).resolve().parents[3] / "docs" / "dns.md"


@pytest.fixture(scope="module")
def etcd() -> Iterator[EtcdCluster]:
    with EtcdCluster.start(1) as cluster:
        yield cluster


async def write(store: EtcdStore, lease: Lease) -> None:
    """Everything of `records()`, by the functions that the nodes use."""
    operations = list(put_records(records(), lease.id))
    for start in range(0, len(operations), 100):
        await store.txn((), operations[start : start + 100])


@asynccontextmanager
async def written(etcd: EtcdCluster) -> AsyncIterator[tuple[EtcdStore, Lease]]:
    async with connected(etcd) as store:
        lease = await store.grant(120)
        await write(store, lease)
        try:
            yield store, lease
        finally:
            await store.revoke(lease)


async def test_coredns_answers_from_our_keys(etcd: EtcdCluster):
    """Addresses of a job and of one instance, services with their addresses; gone with the key,
    and all of them with the lease."""
    with CoreDns.start(etcd.endpoints) as server:
        async with connected(etcd) as store:
            lease = await store.grant(120)
            await write(store, lease)
            port = server.port
            addresses = ["10.1.0.1", "10.1.0.2", "10.1.0.3"]
            await wait_for(found_at(port, "web.default"), addresses)
            assert await found_at(port, "1.web.default")() == ["10.1.0.2"]
            query = dns.message.make_query("_8000._tcp.web.default.ozy.internal", "SRV")
            answer = await dns.asyncquery.udp(query, HERE, port=port, timeout=10)
            targets = [f"{slot}._8000._tcp.web.default.ozy.internal." for slot in range(3)]
            services = sorted(r.to_text() for rrset in answer.answer for r in rrset)
            assert services == [f"10 33 8000 {target}" for target in targets]
            beside = {rrset.name.to_text(): rrset[0].to_text() for rrset in answer.additional}
            assert beside == dict(zip(targets, addresses, strict=True))
            assert answer.answer[0].ttl <= 5

            mine = [r for r in records() if r.name.startswith("1.") and ".web.default." in r.name]
            await store.txn((), list(delete_records(mine)))
            await wait_for(found_at(port, "web.default"), ["10.1.0.1", "10.1.0.3"])
            await store.revoke(lease)
            for name in ("web.default", "0.web.default", "api.shop"):
                await wait_for(found_at(port, name), "NXDOMAIN")


# The same questions to both -------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Heard:
    """What is compared of an answer. What a truncated one has left is a matter of chance."""

    rcode: str
    is_authoritative: bool
    is_truncated: bool
    has_edns: bool
    question: str
    answer: frozenset[str]
    additional: frozenset[str]


def heard(message: dns.message.Message) -> Heard:
    is_truncated = bool(message.flags & dns.flags.TC)
    sections = [
        frozenset(
            f"{rrset.name.to_text().lower()} {rrset.rdtype.name} {rdata.to_text()}"
            # A serial is nobody's concern: nothing is transferred.
            if rrset.rdtype.name != "SOA"
            else f"{rrset.name.to_text().lower()} SOA"
            for rrset in section
            for rdata in rrset
            if not is_truncated
        )
        for section in (message.answer, message.additional)
    ]
    return Heard(
        rcode=dns.rcode.to_text(message.rcode()),
        is_authoritative=bool(message.flags & dns.flags.AA),
        is_truncated=is_truncated,
        has_edns=message.edns >= 0,
        question=message.question[0].name.to_text() if message.question else "",
        answer=sections[0],
        additional=sections[1],
    )


async def ask(port: int, question: Question) -> Heard:
    query = dns.message.make_query(question.name, question.kind, question.rdclass)
    if question.edns is not None:
        flags = dns.flags.DO if question.dnssec else 0
        query.use_edns(0, ednsflags=flags, payload=question.edns)
    if not question.recursion:
        query.flags &= ~dns.flags.RD
    through = dns.asyncquery.tcp if question.tcp else dns.asyncquery.udp
    return heard(await through(query, HERE, port=port, timeout=20))


def test_there_are_enough_questions():
    """At least five hundred different ones, and every difference is asked for."""
    asked = list(questions())
    assert len(set(asked)) >= 500
    assert {question.difference for question in asked} == {"", *DIFFERENCES - {STRICT}}
    assert packets().keys() >= STRICTLY


def test_differences_are_documented():
    """The table of docs/dns.md has each difference, and no other."""
    rows = re.findall(r"^\| `([a-z-]+)` \|", DOCUMENT.read_text(), re.MULTILINE)
    assert sorted(rows) == sorted(DIFFERENCES)


@asynccontextmanager
async def serving_both(etcd: EtcdCluster, directory: Path) -> AsyncIterator[tuple[int, int]]:
    """The ports of our process and of CoreDNS, on the same records and the same resolver."""
    port = free_port()
    async with resolving() as (_, (_, upstream)), written(etcd):
        forwarder = f"{HERE}:{upstream}"
        settings = {
            "etcd": {"endpoints": list(etcd.endpoints)},
            "dns": {"listen": f"{HERE}:{port}", "forwarders": [forwarder]},
        }
        with (
            process("dns", directory, settings),
            CoreDns.start(etcd.endpoints, forwarder) as server,
        ):
            await wait_for(found_at(port, "api.shop"), ["10.2.0.1"])
            yield port, server.port


async def test_both_answer_alike(etcd: EtcdCluster, tmp_path: Path):
    """Every question gets the same answer from CoreDNS and from our responder, but for the
    differences that have a name, and these are still there."""
    asked = list(dict.fromkeys(questions()))
    limit = asyncio.Semaphore(AT_ONCE)

    async def both(question: Question) -> tuple[Heard, Heard]:
        async with limit:
            return await ask(ours_at, question), await ask(theirs_at, question)

    async with serving_both(etcd, tmp_path) as (ours_at, theirs_at):
        pairs = await asyncio.gather(*map(both, asked))
    wrong = [
        f"{question}: {question.difference or differing(ours, theirs)}"
        for question, (ours, theirs) in zip(asked, pairs, strict=True)
        if (ours != theirs) is not bool(question.difference)
    ]
    assert not wrong, f"{len(wrong)} of {len(asked)}\n" + "\n".join(wrong)


def differing(ours: Heard, theirs: Heard) -> str:
    pairs = ((field, getattr(ours, field), getattr(theirs, field)) for field in Heard.__slots__)
    return ", ".join(f"{field} {a} != {b}" for field, a, b in pairs if a != b)


async def test_both_take_strange_packets_alike(etcd: EtcdCluster, tmp_path: Path):
    """The same code, flags and counts, or the same silence; where CoreDNS is lenient we are not,
    and the packets that show it are named."""

    async def tell(port: int, data: bytes) -> str:
        with socket.socket(type=socket.SOCK_DGRAM) as asking:
            asking.setblocking(False)
            asking.connect((HERE, port))
            asking.send(data)
            try:
                async with asyncio.timeout(2.0):
                    found = await asyncio.get_running_loop().sock_recv(asking, 4096)
            except TimeoutError:
                return "silence"
        # Whether recursion is offered (RA) is left out: CoreDNS does it and does not say so.
        return f"code {found[3] & 15} {found[2]:02x}{found[3] & 0x70:02x} {found[4:12].hex()}"

    async with serving_both(etcd, tmp_path) as (ours_at, theirs_at):
        names = list(packets())
        ours = await asyncio.gather(*(tell(ours_at, packets()[name]) for name in names))
        theirs = await asyncio.gather(*(tell(theirs_at, packets()[name]) for name in names))
    wrong = [
        f"{name}: {mine}, CoreDNS {other}"
        for name, mine, other in zip(names, ours, theirs, strict=True)
        if (mine != other) is not (name in STRICTLY)
    ]
    assert not wrong, "\n".join(wrong)
    assert all(
        mine.startswith("code 1 ")
        for name, mine in zip(names, ours, strict=True)
        if name in STRICTLY
    )
