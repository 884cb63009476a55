"""A host being changed: what `init`, `join`, `leave`, `restore` and the keeper have in common.

`Work` holds the record and everything that acts on the host; each method looks first and changes
what is missing, and says what it did. Nothing is undone on failure: what was done is right, and
the next run goes on from there.
"""

import asyncio
import socket
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Callable, Collection, Coroutine, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeVar

from ozymandias import __version__
from ozymandias.cluster import install
from ozymandias.cluster.founding import (
    credentials,
    files,
    members,
    record,
    registry,
    running,
    services,
    waits,
)
from ozymandias.cluster.founding.record import HostRecord, KnownHost, Places
from ozymandias.cluster.founding.running import Runner
from ozymandias.cluster.founding.services import Service
from ozymandias.ports import Ambiguous, Invalid, StoreError, Unavailable
from ozymandias.problems import HOST_CLUSTER, ProblemError
from ozymandias.store import keys
from ozymandias.store.etcd import EtcdStore
from ozymandias.store.etcd_admin import EtcdAdmin, Member
from ozymandias.store.etcd_calls import Timeouts

PROMOTE_SECONDS_MAX = 60.0
ENLIST_SECONDS_MAX = 120.0
BELOW = ("etcd", "podman", "flanneld")  # what the others need
Say = Callable[[str, str], None]  # outcome, what
T = TypeVar("T")


@dataclass(slots=True, kw_only=True)
class Work:
    record: HostRecord
    places: Places
    runner: Runner
    say: Say
    patience_seconds: float = waits.READY_SECONDS_MAX

    @property
    def host(self) -> waits.Host:
        return waits.Host(record=self.record, places=self.places)

    @property
    def machine_id(self) -> str:
        return self.record.machine_id or record.read_machine_id()

    def services(self) -> tuple[Service, ...]:
        return services.services(self.record, self.places)

    def save(self, **changes: Any) -> None:
        self.record = replace(self.record, **changes)
        if record.load(self.places) != self.record:
            record.save(self.places, self.record)

    def known(self, now: float) -> KnownHost:
        certs = [h.seen.not_after for h in credentials.held(self.places, now) if h.seen]
        return KnownHost(
            name=self.record.name,
            address=self.record.address,
            machine_id=self.machine_id,
            part=self.record.part,
            joined=now,
            expires=min(certs, default=0.0),
            version=__version__,
        )

    # Files and services -------------------------------------------------------------------------

    def make_group(self) -> None:
        if not self.places.is_whole_host:
            return
        done = subprocess.run(
            ["/usr/sbin/groupadd", "--system", "--force", install.GROUP],
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        if done.returncode:
            raise ProblemError(HOST_CLUSTER(f"groupadd: {done.stderr.strip()}."))

    def write_files(self) -> set[Path]:
        """All that follow from the record; those that changed."""
        changed = set()
        for text in files.texts(self.record, self.places):
            if files.write(text, self.places):
                self.say("written", str(text.path))
                changed.add(text.path)
        if changed:
            self.runner.prepare()
        return changed

    def start(self, *names: str) -> None:
        """Those that don't run, in order; each is waited for. All, without names.

        What needs nothing of one another is started at once and waited for after that.
        """
        wanted = [service for service in self.services() if not names or service.name in names]
        for rank in (True, False):
            mine = [service for service in wanted if (service.name in BELOW) == rank]
            began, fresh = time.monotonic(), set()
            for service in mine:
                if not self.runner.is_running(service):
                    self.runner.start(service)
                    fresh.add(service.name)
                if rank:
                    waits.wait(self.host, service, self.runner, self.patience_seconds)
            for service in mine:
                waits.wait(self.host, service, self.runner, self.patience_seconds)
                what = "started" if service.name in fresh else "runs already"
                self.say(what, f"{service.name} (ready at {time.monotonic() - began:.1f} s)")

    def restart_readers(self, changed: set[Path], spared: Collection[str] = ()) -> list[str]:
        """Whoever reads one of these files is started anew, but for those spared; the names."""
        found = []
        for service in self.services():
            if service.name in spared:
                continue
            if changed & set(service.reads) and self.runner.is_running(service):
                self.runner.restart(service)
                self.say("restarted", service.name)
                found.append(service.name)
        return found

    # etcd ---------------------------------------------------------------------------------------

    @asynccontextmanager
    async def admin(self, endpoints: Sequence[str] = ()) -> AsyncIterator[EtcdAdmin]:
        urls = endpoints or self.record.endpoints
        found = EtcdAdmin(urls, credentials.etcd_credentials(self.places), Timeouts(call=15.0))
        try:
            yield found
        finally:
            await found.aclose()

    @asynccontextmanager
    async def store(self) -> AsyncIterator[EtcdStore]:
        urls = self.record.endpoints
        found = EtcdStore.connect(urls, credentials.etcd_credentials(self.places))
        try:
            yield found
        finally:
            await found.aclose()

    async def view(self, admin: EtcdAdmin) -> members.View:
        async with self.store() as store:
            known = await registry.hosts(store)
            settings = await registry.settings_of(store) or self.record.cluster
            alive = {kv.key for kv in (await store.range(keys.NODES)).kvs}
        urls = {h.name: f"https://{h.address}:{record.ETCD_PEER_PORT}" for h in known}
        return members.View(
            members=await admin.members(),
            hosts={urls[h.name]: h.joined for h in known},
            mine=self.record.peer_url,
            absent=frozenset(
                url for name, url in urls.items() if keys.NODES + name.encode() not in alive
            ),
            members_max=settings.members_max,
        )

    def enlist(self) -> str:
        """Take the part in the store that is this host's now; why it is that one.

        Runs until nothing is left to be done, and begins wherever a former run was interrupted:
        etcd's own list of members tells.
        """
        return run(self._enlist())

    async def _enlist(self) -> str:
        deadline, last = time.monotonic() + ENLIST_SECONDS_MAX, ""
        async with self.admin() as admin:
            while time.monotonic() < deadline:
                try:
                    view = await self.view(admin)
                    step = members.next_step(view)
                    if isinstance(step, members.Settled):
                        await self._settle(view.members, step)
                        return step.reason
                    await self._take(admin, step, view.members)
                except (Ambiguous, Unavailable) as error:
                    # Right after a change etcd wants to see all members connected for some seconds
                    # ("unhealthy cluster"). What is in doubt is looked at again.
                    last = str(error)
                    await asyncio.sleep(0.5)
            raise ProblemError(
                HOST_CLUSTER(
                    f"etcd's members do not come to rest: {last or 'steps without end'}.",
                    hint="`ozy cluster status` names a member that is away; `ozy cluster remove`"
                    " forgets one that is gone for good. Then run the same command again.",
                )
            )

    async def _take(self, admin: EtcdAdmin, step: members.Step, found: Sequence[Member]) -> None:
        match step:
            case members.Add():
                await admin.add_learner(self.record.peer_url)
                self.say("etcd", f"{self.record.name} {step.reason}, as a learner")
                await self._prepare(await admin.members())
            case members.Promote(member=id_):
                await self._prepare(found)
                await self._promote(admin, id_, step.reason)
            case members.Demote(member=id_):
                await self._demote(admin, id_, step.reason)

    async def _prepare(self, found: Sequence[Member]) -> None:
        """This host's etcd runs, if it is a member; a learner must run to get its vote."""
        mine = next((m for m in found if self.record.peer_url in m.peer_urls), None)
        if mine is None:
            return
        if not mine.is_started:  # later on its own data tell it who the others are
            names = members.initial(found, self.record.name, self.record.peer_url)
            self.save(part="store", initial_members=names, initial_state="existing")
        services.require_programs(self.record)
        await asyncio.to_thread(self.write_files)
        await asyncio.to_thread(self.start, "etcd")

    async def _promote(self, admin: EtcdAdmin, id_: int, reason: str) -> None:
        """It must have caught up first, which etcd tells by refusing."""
        deadline = time.monotonic() + PROMOTE_SECONDS_MAX
        while True:
            try:
                await admin.promote(id_)
            except Invalid as error:
                if "in sync" not in str(error):
                    return  # it has its vote, or is gone: look again
                if time.monotonic() > deadline:
                    raise ProblemError(_cannot_promote(id_, str(error))) from error
                await asyncio.sleep(0.3)
            else:
                self.say("etcd", f"member {id_:x} {reason}")
                return

    async def _demote(self, admin: EtcdAdmin, id_: int, reason: str) -> None:
        self.say("etcd", f"{self.record.name} gives up its vote: {reason}")
        others = [url for url in self.record.endpoints if url != self.record.client_url]
        async with self.admin(others or self.record.endpoints) as other:
            await other.remove(id_)
        await asyncio.to_thread(self.stop, "etcd")
        await asyncio.to_thread(self.put_aside_data)
        self.save(endpoints=tuple(others), initial_members=())

    async def _settle(self, found: Sequence[Member], step: members.Settled) -> None:
        if step.is_member:
            await self._prepare(found)
        endpoints = members.serving(found, self.record.peer_url)
        self.save(endpoints=endpoints, part="store" if step.is_member else "client")

    def stop(self, *names: str) -> None:
        for service in reversed(self.services()):
            if service.name in names:
                self.runner.stop(service)
                self.say("stopped", service.name)

    def put_aside_data(self) -> Path | None:
        """etcd's data, under another name: nothing is thrown away."""
        data = self.places.etcd / "data"
        if not data.exists():
            return None
        kept = self.places.etcd / f"before-{time.strftime('%Y%m%d-%H%M%S')}-{time.time_ns() % 1000}"
        data.rename(kept)
        self.say("kept", str(kept))
        return kept


def _cannot_promote(id_: int, why: str) -> Any:
    return HOST_CLUSTER(
        f"etcd's member {id_:x} can't get its vote: {why}.",
        hint="Its host must be up and reached by the others; `ozy cluster status` names it, and"
        " `ozy cluster remove NAME` forgets one that is gone for good.",
    )


def run(work: Coroutine[Any, Any, T]) -> T:
    """asyncio.run, with failures of the store as problems."""
    try:
        return asyncio.run(work)
    except StoreError as error:
        raise ProblemError(
            HOST_CLUSTER(
                f"etcd does not do it: {error or type(error).__name__}.",
                hint="`ozy cluster status` shows its members; a majority of them must run.",
            )
        ) from error


def of(places: Places, say: Say) -> Work | None:
    """The host as it is; None where it is in no cluster."""
    found = record.load(places)
    if found is None:
        return None
    return Work(record=found, places=places, runner=running.runner(places), say=say)


def usual_name() -> str:
    return socket.gethostname().lower().partition(".")[0]


def usual_address() -> str:
    """The one that the way out has; nothing is sent. "" where there is none."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(("192.0.2.1", 9))  # an address for documentation: nobody is there
            return str(probe.getsockname()[0])
        except OSError:
            return ""


def bin_dir() -> Path:
    return Path(sys.executable).absolute().parent
