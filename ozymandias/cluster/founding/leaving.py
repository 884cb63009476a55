"""A host leaves its cluster, or is forgotten by the others.

Leaving: its work is moved first (a drain, by its own API), then its programs end, the lease is
given back, its etcd member, records and network lease go, and at last the files that were made
here. Volumes stay. The last host does not leave: with it the cluster would end, and that takes
`--force`. Each step can be found done already: leaving that was interrupted goes on.
"""

import asyncio
import json
import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from ozymandias.cluster.doctor.service import UnixConnection
from ozymandias.cluster.founding import files, record, registry, running, work
from ozymandias.cluster.founding.record import Places
from ozymandias.cluster.founding.work import Work
from ozymandias.model.node import NodeName
from ozymandias.model.units import counted, is_or_are
from ozymandias.ports import (
    Ambiguous,
    Compare,
    Delete,
    Invalid,
    Lease,
    Store,
    StoreError,
    Unavailable,
)
from ozymandias.problems import HOST_CLUSTER, Problem, ProblemError
from ozymandias.store import keys

DRAIN_SECONDS_MAX = 300.0
ANSWER_SECONDS_MAX = 15.0
# Made by daemons while they ran; volumes are the jobs' and stay.
STATE = ("etcd", "logs", "ended", "cluster-id", "supervised.json", "audit.log", "daemon.lock")


@dataclass(frozen=True, slots=True, kw_only=True)
class Left:
    cluster: str
    host: str
    kept: str  # the directory of volumes, "" when there are none


def leave(at: Work, *, force: bool = False, drain_seconds: float = DRAIN_SECONDS_MAX) -> Left:
    begun = at.record
    others = _others(at)
    if not others and not force:
        raise ProblemError(_last(begun.name))
    if begun.stage != "leaving" and not force:
        drain(at, drain_seconds)
    at.save(stage="leaving")
    at.stop(*(s.name for s in at.services() if s.name not in ("etcd", "podman")))
    if others:
        with _forgiving(at, force):
            work.run(_withdraw(at, others))
    at.stop("etcd")
    runner = at.runner
    _remove_files(at)
    if isinstance(runner, running.Supervised):
        runner.end()
    volumes = at.places.state / "volumes"
    return Left(cluster=begun.cluster.id, host=begun.name, kept=str(volumes) * volumes.exists())


def _others(at: Work) -> tuple[str, ...]:
    """Members that are left when this one is gone."""
    return tuple(url for url in at.record.endpoints if url != at.record.client_url)


def _last(name: str) -> Problem:
    return HOST_CLUSTER(
        f"{name} is the only host with a vote in the store: the cluster would end with it.",
        hint="`ozy cluster backup FILE` first; --force ends it. With a second host, wait until"
        " a third has joined.",
    )


@contextmanager
def _forgiving(at: Work, force: bool) -> Iterator[None]:
    """With --force what the others can't be told is said, and no reason to stay."""
    try:
        yield
    except ProblemError as error:
        if not force:
            raise
        at.say("skipped", error.problem.detail)


# Moving its work ----------------------------------------------------------------------------------


def drain(at: Work, seconds: float) -> None:
    """By this host's own daemon. Without room elsewhere it is refused before anything is moved."""
    name = at.record.name
    if not _instances(at.places, name):
        return
    status, answer = _api(at.places, "POST", f"/v1/nodes/{name}/drain", {})
    if status >= 400:
        detail = str(answer.get("detail", f"the daemon answers {status}"))
        raise ProblemError(
            HOST_CLUSTER(
                f"{name} can't be emptied: {detail}",
                hint=str(answer.get("hint", "")) or "--force leaves without moving its work first.",
            )
        )
    at.say("draining", f"the work of {name} is moved elsewhere")
    deadline = time.monotonic() + seconds
    while count := _instances(at.places, name):
        if time.monotonic() > deadline:
            left = f"{counted(count, 'instance')} {is_or_are(count)}"
            raise ProblemError(
                HOST_CLUSTER(
                    f"{left} still on {name} after {seconds:.0f} s.",
                    hint="`ozy ps` shows them; run it again to go on waiting.",
                )
            )
        time.sleep(0.5)
    at.say("drained", name)


def _instances(places: Places, name: str) -> int:
    status, answer = _api(places, "GET", "/v1/nodes", None)
    rows = {row["name"]: row for row in answer.get("items", ())} if status == 200 else {}
    return int(rows[name]["instances"]) if name in rows else 0


def _api(
    places: Places, method: str, path: str, body: dict[str, Any] | None
) -> tuple[int, dict[str, Any]]:
    connection = UnixConnection(places.api_socket, ANSWER_SECONDS_MAX)
    try:
        data = json.dumps(body) if body is not None else None
        connection.request(method, path, data, {"Content-Type": "application/json"})
        answer = connection.getresponse()
        found = json.loads(answer.read() or b"{}")
        return answer.status, found if isinstance(found, dict) else {}
    except (OSError, ValueError) as error:
        raise ProblemError(
            HOST_CLUSTER(
                f"The daemon here does not answer: {error}.",
                hint="`ozy doctor` says why; --force leaves without moving its work first.",
            )
        ) from None
    finally:
        connection.close()


# Telling the others -------------------------------------------------------------------------------


async def _withdraw(at: Work, others: tuple[str, ...]) -> None:
    async with at.admin(others) as admin:
        for member in await admin.members():
            if at.record.peer_url in member.peer_urls:
                await _remove_member(admin, member.id)
                at.say("etcd", f"{at.record.name} is no member any more")
    at.record = replace(at.record, endpoints=others)  # its own is leaving
    async with at.store() as store:
        await forget(store, at.record.name, at.record.address)
    at.say("etcd", f"{at.record.name} is forgotten by the others")


async def _remove_member(admin: Any, id_: int) -> None:
    """A member that is needed for the majority is not let go until the others are started."""
    deadline = asyncio.get_running_loop().time() + 30.0
    while True:
        try:
            await admin.remove(id_)
            return
        except (Invalid, Ambiguous, Unavailable) as error:
            if "not found" in str(error):
                return
            if asyncio.get_running_loop().time() > deadline:
                raise
            await asyncio.sleep(0.5)


async def forget(store: Store, name: str, address: str) -> None:
    """The node's lease with all that hangs on it, its host record, its subnet, its empty ledger."""
    node = NodeName(name)
    presence = await store.get(keys.node(node))
    if presence is not None:
        with suppress(StoreError, ValueError):
            long_lease = int(json.loads(presence.value).get("long_lease", 0))
            if long_lease:
                await store.revoke(Lease(long_lease, 0, 0.0))
        await store.revoke(Lease(presence.lease, 0, 0.0))
    await registry.remove_host(store, name)
    await _remove_ledger(store, node)
    for kv in (await store.range(registry.FLANNEL_SUBNETS)).kvs:
        with suppress(ValueError, AttributeError):
            if json.loads(kv.value).get("PublicIP") == address:
                await store.txn([], [Delete(kv.key)])


async def _remove_ledger(store: Store, node: NodeName) -> None:
    """Only while nothing is assigned there and nobody calls itself so."""
    prefix = keys.assignments(node)
    await store.txn(
        [
            Compare(prefix, "create", "<", 1, range_end=keys.prefix_end(prefix)),
            Compare(keys.node(node), "version", "=", 0),
        ],
        [Delete(keys.ledger(node))],
    )


def remove(at: Work, name: str) -> None:
    """Forget a host that is gone for good: its member, records, lease. Its work moves by itself."""

    async def removing() -> None:
        async with at.store() as store, at.admin() as admin:
            known = {host.name: host for host in await registry.hosts(store)}
            if name not in known:
                raise ProblemError(
                    HOST_CLUSTER(
                        f"The cluster has no host {name!r}.",
                        hint=f"It has {', '.join(sorted(known))}.",
                    )
                )
            peer_url = f"https://{known[name].address}:{record.ETCD_PEER_PORT}"
            for member in await admin.members():
                if peer_url in member.peer_urls:
                    await _remove_member(admin, member.id)
                    at.say("etcd", f"{name} is no member any more")
            await forget(store, name, known[name].address)

    if name == at.record.name:
        raise ProblemError(
            HOST_CLUSTER("That is this host.", hint="`ozy node leave` takes it out.")
        )
    work.run(removing())


# Files --------------------------------------------------------------------------------------------


def _made(at: Work) -> Iterator[Path]:
    places = at.places
    for text in files.texts(at.record, places):
        yield text.path
    yield from (places.token, places.token_hashes, places.certificates, places.record)
    yield from (places.state / name for name in STATE)
    yield places.api_socket


def _remove_files(at: Work) -> None:
    for path in _made(at):
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        elif path.exists() or path.is_symlink():
            path.unlink()
        else:
            continue
        at.say("removed", str(path))
    with suppress(OSError):
        at.places.settings.rmdir()
    if at.places.has_systemd:
        at.runner.prepare()
