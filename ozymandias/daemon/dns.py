"""Composition root of `ozymandias-dns`: the built-in responder, fed from CoreDNS's keys.

It only reads the store. Until the first reading its own names get SERVFAIL, since nobody may
conclude that they do not exist. Records that were read stay in force while the store is away; one
that makes no sense is left out with a warning. The listening address may come into being later.
"""

import asyncio
import contextlib
import ipaddress
import signal
from collections.abc import Iterable, Sequence
from functools import partial
from pathlib import Path

from ozymandias import telemetry
from ozymandias.daemon import config as settings
from ozymandias.daemon.config import Config
from ozymandias.daemon.connect import connect_store
from ozymandias.daemon.ingress import follow_store, pulse, run_process
from ozymandias.daemon.notify import notify
from ozymandias.edge import dns as layout
from ozymandias.edge.dns_sockets import bind_tcp, bind_udp
from ozymandias.edge.forwarder import Forwarder
from ozymandias.edge.last_good import GROUPS_MIN, HOLD_SECONDS
from ozymandias.edge.responder import Responder
from ozymandias.edge.zone import Zone
from ozymandias.model.routing import DnsRecord
from ozymandias.ports import Event, Listing, Store
from ozymandias.problems import CONFIG_INVALID, ProblemError

RESOLV_CONF = Path("/etc/resolv.conf")
DNS_PORT = 53


def main() -> None:
    run_process("ozymandias-dns", "DNS responder for the cluster's names.", serve)


async def serve(config: Config) -> None:
    listen = listen_addresses(config)
    zone = Zone(config.names.domain)
    forwarder = Forwarder(forwarders_of(config, listen))
    responder = Responder(zone, forwarder)
    try:
        datagrams, listeners = bind_udp(listen), bind_tcp(listen)
    except OSError as error:
        raise ProblemError(CONFIG_INVALID(f"[dns] listen: {error}")) from error
    stopping = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stopping.set)
    store = connect_store(config.etcd)
    records = Records(zone)
    servers = [await responder.serve_tcp(sock) for sock in listeners]
    try:
        async with asyncio.TaskGroup() as group:
            tasks = [
                group.create_task(follow_store(partial(records.follow, store))),
                group.create_task(store.follow_members()),
                group.create_task(records.release_held()),
                group.create_task(forwarder.run()),
                group.create_task(pulse()),
            ]
            for sock in datagrams:
                responder.serve_udp(sock)
            notify("READY=1")
            telemetry.log(
                "dns.started",
                listen=",".join(f"{host}:{port}" for host, port in listen),
                zone=zone.domain,
                forwarders=",".join(host for host, _ in forwarder.resolvers),
            )
            await stopping.wait()
            for task in tasks:
                task.cancel()
    finally:
        for server in servers:
            server.close()
        responder.close()
        await asyncio.sleep(0)  # lets the connections end before the event loop does
        for sock in datagrams:
            loop.remove_reader(sock.fileno())
            sock.close()
        await store.aclose()


class Records:
    """The store's records, guarded against vanishing all at once, put into the zone.

    They are kept by job. A batch of events costs as much as the jobs it touches, not the zone.
    When most jobs lose all their records in one batch, these are held for a while: that is rarely
    the truth about the instances, and always an outage if it is believed (`edge/last_good.py`).
    """

    def __init__(self, zone: Zone, *, hold_seconds: float = HOLD_SECONDS) -> None:
        self._zone = zone
        self._hold_seconds = hold_seconds
        self._jobs: dict[str, dict[bytes, DnsRecord]] = {}  # none is empty
        self._held: dict[str, tuple[dict[bytes, DnsRecord], float]] = {}
        self._changed = asyncio.Event()
        zone.is_known = False

    async def follow(self, store: Store) -> None:
        async for item in store.mirror(layout.PREFIX):
            if isinstance(item, Listing):
                self.take_all((kv.key, kv.value) for kv in item.kvs)
            else:
                self.take_events(item)

    def take_all(self, pairs: Iterable[tuple[bytes, bytes]]) -> None:
        """Everything that there is, after which the zone is known."""
        before = self._jobs
        self._jobs = {}
        for key, value in pairs:
            self._put(key, value)
        self._admit({job: before.get(job, {}) for job in (before | self._jobs)}, len(before))
        self._zone.is_known = True

    def take_events(self, events: Sequence[Event]) -> None:
        jobs = len(self._jobs)
        before: dict[str, dict[bytes, DnsRecord]] = {}
        for event in events:
            job = self._job_of(event.kv.key)
            if job not in before:
                before[job] = dict(self._jobs.get(job, {}))
            if event.deleted:
                self._drop(job, event.kv.key)
            else:
                self._put(event.kv.key, event.kv.value)
        self._admit(before, jobs)

    def _put(self, key: bytes, value: bytes) -> None:
        job = self._job_of(key)
        try:
            record = layout.record_of(key, value)
        except ValueError as error:
            self._drop(job, key)
            telemetry.warn("dns.record.ignored", reason=str(error))
        else:
            self._jobs.setdefault(job, {})[key] = record

    def _drop(self, job: str, key: bytes) -> None:
        records = self._jobs.get(job, {})
        records.pop(key, None)
        if not records:
            self._jobs.pop(job, None)

    def _admit(self, before: dict[str, dict[bytes, DnsRecord]], jobs: int) -> None:
        """Put into the zone what may be served now; ``before``: touched jobs as they were, of
        ``jobs`` in all."""
        lost = [job for job, records in before.items() if records and job not in self._jobs]
        if jobs >= GROUPS_MIN and len(lost) * 2 > jobs:
            until = asyncio.get_running_loop().time() + self._hold_seconds
            self._held |= {job: (before[job], until) for job in lost}
            telemetry.warn(
                "dns.last_known_good",
                jobs=",".join(sorted(lost)),
                reason="most jobs lost all their records at once",
            )
        for job, records in before.items():
            if job in self._jobs:
                former, _ = self._held.pop(job, (records, 0.0))
                self._serve(former, self._jobs[job])
            elif job not in self._held:
                self._serve(records, {})
        self._changed.set()

    def _serve(self, before: dict[bytes, DnsRecord], now: dict[bytes, DnsRecord]) -> None:
        for key in before.keys() - now.keys():
            self._zone.remove(before[key].name)
        for record in now.values():
            self._zone.put(record)

    def _job_of(self, key: bytes) -> str:
        """``/skydns/internal/ozy/default/web/0`` -> ``default/web``, common to a job's records."""
        depth = self._zone.domain.count(".") + 3  # the prefix begins with a slash
        return b"/".join(key.split(b"/")[depth : depth + 2]).decode(errors="replace")

    def release(self, now: float) -> None:
        """Let go of what was held, when its time is over."""
        for job in [job for job, (_, until) in self._held.items() if until <= now]:
            self._serve(self._held.pop(job)[0], {})

    async def release_held(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            self._changed.clear()
            when = min((until for _, until in self._held.values()), default=None)
            try:
                async with asyncio.timeout_at(when):
                    await self._changed.wait()
            except TimeoutError:
                self.release(loop.time())


def listen_addresses(config: Config) -> list[tuple[str, int]]:
    texts = [t.strip() for t in f"{config.dns.listen},{config.dns.host_listen}".split(",")]
    return [settings.host_port(text, "[dns] listen") for text in texts if text]


def forwarders_of(config: Config, listen: Sequence[tuple[str, int]]) -> list[tuple[str, int]]:
    """Those of the settings, else the host's own resolvers; never ourselves."""
    found: list[tuple[str, int]] = []
    for text in config.dns.forwarders or resolvers_of(RESOLV_CONF):
        host, port = (
            settings.host_port(text, "[dns] forwarders")
            if text.count(":") == 1 or text.startswith("[")
            else (text, DNS_PORT)
        )
        try:
            ipaddress.ip_address(host)
        except ValueError as error:
            raise ProblemError(CONFIG_INVALID(f"[dns] forwarders: {error}")) from error
        if (host, port) not in listen:
            found.append((host, port))
    return found


def resolvers_of(file: Path) -> list[str]:
    try:
        lines = file.read_text(errors="replace").splitlines()
    except OSError:
        return []
    found = []
    for words in (line.split() for line in lines):
        if len(words) >= 2 and words[0] == "nameserver":
            with contextlib.suppress(ValueError):
                found.append(str(ipaddress.ip_address(words[1].partition("%")[0])))
    return found


if __name__ == "__main__":
    main()
