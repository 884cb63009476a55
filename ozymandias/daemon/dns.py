"""Composition root of `ozymandias-dns`: the built-in responder, fed from CoreDNS's keys.

It only reads the store. Records that were read stay in force while the store is away; a record
that makes no sense is left out with a warning. The listening address may come into being later.
"""

import asyncio
import contextlib
import ipaddress
import signal
from collections.abc import Sequence
from pathlib import Path

from ozymandias import telemetry
from ozymandias.daemon import config as settings
from ozymandias.daemon.config import Config
from ozymandias.daemon.connect import connect_store
from ozymandias.daemon.ingress import follow_store, pulse, run_process
from ozymandias.daemon.notify import notify
from ozymandias.edge import dns as layout
from ozymandias.edge.forwarder import Forwarder
from ozymandias.edge.last_good import LastKnownGood
from ozymandias.edge.responder import Responder, bind_tcp, bind_udp
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
    records = Records(store, zone)
    servers = [await responder.serve_tcp(sock) for sock in listeners]
    try:
        async with asyncio.TaskGroup() as group:
            tasks = [
                group.create_task(follow_store(records.follow)),
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
    """The store's records, guarded against vanishing all at once, put into the zone."""

    def __init__(self, store: Store, zone: Zone) -> None:
        self._store = store
        self._zone = zone
        self._records: dict[bytes, DnsRecord] = {}
        self._guard: LastKnownGood[str, dict[bytes, DnsRecord]] = LastKnownGood()
        self._changed = asyncio.Event()

    async def follow(self) -> None:
        async for item in self._store.mirror(layout.PREFIX):
            if isinstance(item, Listing):
                self._records = {}
                for kv in item.kvs:
                    self._take(kv.key, kv.value)
            else:
                self._apply(item)
            self.refresh()

    def _apply(self, events: Sequence[Event]) -> None:
        for event in events:
            if event.deleted:
                self._records.pop(event.kv.key, None)
            else:
                self._take(event.kv.key, event.kv.value)

    def _take(self, key: bytes, value: bytes) -> None:
        try:
            self._records[key] = layout.record_of(key, value)
        except ValueError as error:
            self._records.pop(key, None)
            telemetry.warn("dns.record.ignored", reason=str(error))

    def refresh(self) -> None:
        """Put into the zone what may be served now."""
        jobs: dict[str, dict[bytes, DnsRecord]] = {}
        for key, record in self._records.items():
            jobs.setdefault(self._job_of(record.name), {})[key] = record
        served = self._guard.admit(jobs, asyncio.get_running_loop().time())
        self._zone.replace(record for found in served.values() for record in found.values())
        if self._guard.held:
            telemetry.warn(
                "dns.last_known_good",
                jobs=",".join(sorted(self._guard.held)),
                reason="most jobs lost all their records at once",
            )
        self._changed.set()

    def _job_of(self, name: str) -> str:
        """``0.web.default.ozy.internal`` -> ``web.default``, common to a job's records."""
        return ".".join(name.removesuffix("." + self._zone.domain).split(".")[-2:])

    async def release_held(self) -> None:
        """Let go of what was held, when its time is over."""
        while True:
            self._changed.clear()
            release = self._guard.next_release
            try:
                async with asyncio.timeout_at(release):
                    await self._changed.wait()
            except TimeoutError:
                self.refresh()


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
