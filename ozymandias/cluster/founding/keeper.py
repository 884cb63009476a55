"""The keeper of a host: `python -m ozymandias.cluster.founding.keeper`.

It keeps true what changes after the founding: certificates are renewed long before they expire,
settings follow etcd's members as hosts join and leave, a free place in the store is taken. It
wakes when a host record changes, and every minute; each time it looks at everything and does what
is missing. Where the authority's key is, it opens the door for joining hosts.
"""

import argparse
import asyncio
import contextlib
import signal
import sys
import time
from pathlib import Path

from ozymandias import telemetry
from ozymandias.cluster.founding import credentials, door, found, knocking, registry, work
from ozymandias.cluster.founding.authority import Pair
from ozymandias.cluster.founding.door import Door
from ozymandias.cluster.founding.messages import JoinRequest
from ozymandias.cluster.founding.record import Places
from ozymandias.cluster.founding.work import Work
from ozymandias.ports import StoreError
from ozymandias.problems import ProblemError
from ozymandias.store import keys
from ozymandias.telemetry import log, warn

LOOK_SECONDS = 60.0
RETRY_SECONDS = 5.0
OWN = ("daemon", "ingress", "dns")


def refresh(at: Work, *, force: bool = False) -> list[str]:
    """Look at everything once and do what is missing; what was restarted."""
    changed = set()
    is_renewed = renew(at, force=force)
    if is_renewed:
        changed |= {at.places.cert(use) for use in credentials.USES}
        changed |= {at.places.toml, at.places.corefile, at.places.settings / "flanneld.env"}
    at.enlist()
    changed |= at.write_files()
    # Our own programs learn of new members by themselves; the others read their settings anew.
    restarted = at.restart_readers(changed, () if is_renewed else OWN)
    work.run(_tell(at))
    return restarted


async def _tell(at: Work) -> None:
    async with at.store() as store:
        await registry.update_host(store, at.known(time.time()))


def renew(at: Work, *, force: bool = False) -> bool:
    """New certificates if the ones here are near their end or no good; whether there are.

    Here, where the authority's key is; else from the door of a host that has it.
    """
    now = time.time()
    if not force and not any(held.is_due(now) for held in credentials.held(at.places, now)):
        return False
    if found.sign_here(at, now):
        return True
    request = JoinRequest(
        name=at.record.name,
        address=at.record.address,
        machine_id=at.machine_id,
        requests=credentials.requests(at.places, at.record.name),
    )
    ca = at.places.authority_cert.read_text()
    failed: ProblemError | None = None
    for endpoint in at.record.endpoints:
        address = endpoint.partition("://")[2].rpartition(":")[0].strip("[]")
        try:
            answer = knocking.ask(address, ca, "/renew", request, at.places)
        except ProblemError as error:
            failed = error
            continue
        credentials.write_certificates(at.places, answer.certificates)
        credentials.write_authority(at.places, Pair(cert=ca, key=answer.authority_key))
        at.say("made", f"this host's certificates, signed by {address}")
        return True
    if failed is not None:
        raise failed
    return False


class Keeper:
    def __init__(self, at: Work) -> None:
        self._at = at
        self._changed = asyncio.Event()
        self._stale = asyncio.Event()  # what the door was opened with is not as it was

    async def run(self) -> None:
        async with asyncio.TaskGroup() as group:
            group.create_task(self._follow())
            group.create_task(self._serve_door())
            await self._look()

    async def _look(self) -> None:
        while True:
            self._changed.clear()
            wait, before = LOOK_SECONDS, _stamp(self._at.places)
            try:
                fresh = work.of(self._at.places, _said)
                if fresh is None or fresh.record.stage == "leaving":
                    return
                self._at.record = fresh.record
                if fresh.record.stage == "ready":
                    await asyncio.to_thread(refresh, self._at)
            except (ProblemError, OSError) as error:
                warn("keeper.failed", reason=str(error))
                wait = RETRY_SECONDS
            if _stamp(self._at.places) != before:
                self._stale.set()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(wait):
                    await self._changed.wait()

    async def _follow(self) -> None:
        """Host records tell of joins and leaves: look at once."""
        while True:
            try:
                async with self._at.store() as store:
                    async for _ in store.mirror(keys.HOSTS):
                        self._changed.set()
            except StoreError as error:
                warn("keeper.store", reason=str(error))
            await asyncio.sleep(RETRY_SECONDS)

    async def _serve_door(self) -> None:
        """Opened again when certificates are new, or the port was taken."""
        at = self._at
        while True:
            if credentials.read_authority(at.places) is None:
                await asyncio.sleep(RETRY_SECONDS)
                continue
            self._stale.clear()
            try:
                async with at.store() as store, at.admin() as admin:
                    served = Door(at.record, at.places, store, admin)
                    async with door.serving(served, at.places, at.record.address):
                        log("door.open", address=at.record.address)
                        await self._stale.wait()
            except OSError as error:
                warn("door.closed", reason=str(error))
                await asyncio.sleep(RETRY_SECONDS)


def _stamp(places: Places) -> tuple[int, ...]:
    files = (places.cert("host"), places.authority_cert, places.record)
    return tuple(file.stat().st_mtime_ns for file in files if file.exists())


def _said(outcome: str, what: str) -> None:
    if outcome != "runs already":
        log("keeper.did", outcome=outcome, what=what)


async def _until_signal(at: Work) -> None:
    task, loop = asyncio.current_task(), asyncio.get_running_loop()
    assert task is not None
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, task.cancel)
    with contextlib.suppress(asyncio.CancelledError):
        await Keeper(at).run()


def main() -> None:
    parser = argparse.ArgumentParser(description="Keeps this host's part of the cluster true.")
    parser.add_argument("--root", type=Path, default=Path("/"), help="the host's root directory")
    telemetry.configure()
    at = work.of(Places(root=parser.parse_args().root.absolute()), _said)
    if at is None:
        sys.exit("this host is in no cluster")
    asyncio.run(_until_signal(at))


if __name__ == "__main__":
    main()
