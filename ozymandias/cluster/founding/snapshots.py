"""Copies of the whole cluster's state, and a cluster brought back from one.

A backup is a tar file: etcd's snapshot, the authority with its key, the hashes of API tokens, and
what the cluster was. With it a cluster can be founded again, on the same host or another one. It
holds secrets: keep it as you keep root's password.

Restoring makes an etcd of one member, with a new identity: its revisions begin where the copy was
made, so what a daemon remembers of the time after that means something else now. Therefore every
presence record is removed before any daemon may ask: each must register anew, which reclaims the
pods it runs that are still assigned to it, and every write that was decided on the old history
fails on its fence. Other hosts stand still meanwhile (`halt`) and come after (`resume ADDRESS`).
"""

import hashlib
import io
import json
import os
import subprocess
import tarfile
import tempfile
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import msgspec

from ozymandias import __version__
from ozymandias.cluster.founding import credentials, found, registry, running, services, work
from ozymandias.cluster.founding import record as records
from ozymandias.cluster.founding.authority import Pair
from ozymandias.cluster.founding.found import Wish
from ozymandias.cluster.founding.record import ClusterSettings, KnownHost, Places
from ozymandias.cluster.founding.work import Say, Work
from ozymandias.model.units import counted
from ozymandias.ports import Delete, StoreError
from ozymandias.problems import HOST_CLUSTER, Problem, ProblemError
from ozymandias.store import keys
from ozymandias.store.etcd_admin import EtcdAdmin
from ozymandias.store.etcd_calls import Timeouts

RESTORE_SECONDS_MAX = 600.0
PARTS = ("manifest.json", "snapshot.db", "ca.crt", "ca.key", "tokens")
STILL = ("keeper", "daemon", "etcd")  # what stands still; pods, ingress and DNS go on


@dataclass(frozen=True, slots=True, kw_only=True)
class Manifest:
    cluster: ClusterSettings
    host: str
    time: float
    revision: int
    sha256: str  # of snapshot.db
    version: str


# Making one ---------------------------------------------------------------------------------------


def backup(at: Work, file: Path) -> Manifest:
    """Whole or not at all; readable by its owner only."""
    pair = credentials.read_authority(at.places)
    if pair is None:
        raise ProblemError(
            HOST_CLUSTER(
                "This host does not hold the authority's key.",
                hint="Run it on one that holds the store; `ozy cluster status` names them.",
            )
        )
    draft = file.with_name(f".{file.name}.new")
    try:
        with tempfile.TemporaryDirectory(prefix=".ozy-backup-", dir=file.parent) as name:
            snapshot = Path(name) / "snapshot.db"
            revision, digest = work.run(_fetch(at, snapshot))
            manifest = Manifest(
                cluster=at.record.cluster,
                host=at.record.name,
                time=time.time(),
                revision=revision,
                sha256=digest,
                version=__version__,
            )
            texts = {
                "manifest.json": json.dumps(asdict(manifest), indent=2),
                "ca.crt": pair.cert,
                "ca.key": pair.key,
                "tokens": at.places.token_hashes.read_text(),
            }
            descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
            with os.fdopen(descriptor, "wb") as stream, tarfile.open(fileobj=stream, mode="w") as t:
                for part, text in texts.items():
                    _add(t, part, text.encode())
                t.add(snapshot, "snapshot.db")
                stream.flush()
                os.fsync(stream.fileno())
        draft.replace(file)
    except OSError as error:
        raise ProblemError(HOST_CLUSTER(f"{file} can't be written: {error}.")) from error
    finally:
        draft.unlink(missing_ok=True)
    return manifest


def _add(tar: tarfile.TarFile, name: str, data: bytes) -> None:
    entry = tarfile.TarInfo(name)
    entry.size, entry.mode, entry.mtime = len(data), 0o600, int(time.time())
    tar.addfile(entry, io.BytesIO(data))


async def _fetch(at: Work, file: Path) -> tuple[int, str]:
    digest = hashlib.sha256()
    async with at.admin() as admin:
        revision = (await admin.answering()).revision
        with file.open("wb") as stream:
            async for part in admin.snapshot():
                digest.update(part)
                stream.write(part)
    return revision, digest.hexdigest()


# Bringing it back ---------------------------------------------------------------------------------


def restore(file: Path, wish: Wish, places: Places, say: Say, *, force: bool = False) -> Work:
    """This host alone holds the store afterwards, as it was when the copy was made."""
    with tempfile.TemporaryDirectory(prefix="ozy-restore-") as name:
        parts = Path(name)
        manifest = _unpack(file, parts)
        at = _host(manifest, wish, places, say)
        if not force:
            _refuse_living(at)
        at.make_group()
        halt(at)
        pair = Pair(cert=(parts / "ca.crt").read_text(), key=(parts / "ca.key").read_text())
        credentials.write_authority(places, pair)
        if not places.token_hashes.exists():
            credentials.write_token_hashes(places, (parts / "tokens").read_text())
        found.sign_here(at, time.time())
        at.put_aside_data()
        at.save(
            part="store",
            stage="begun",
            endpoints=(at.record.client_url,),
            initial_members=(f"{at.record.name}={at.record.peer_url}",),
            initial_state="new",
        )
        _unpack_store(at, parts / "snapshot.db", manifest)
    at.write_files()
    at.start("etcd")
    removed = work.run(_begin_anew(at))
    say("etcd", f"{counted(removed, 'node')} must register anew")
    at.restart_readers({places.toml, places.corefile, places.settings / "flanneld.env"})
    at.start()
    at.save(stage="ready")
    return at


def _unpack(file: Path, into: Path) -> Manifest:
    try:
        with tarfile.open(file) as tar:
            for part in PARTS:
                source = tar.extractfile(part)
                if source is None:
                    raise ValueError(f"it lacks {part}")
                with (into / part).open("wb") as target:
                    while data := source.read(2**20):
                        target.write(data)
        manifest = msgspec.json.decode((into / "manifest.json").read_bytes(), type=Manifest)
        digest = hashlib.sha256()
        with (into / "snapshot.db").open("rb") as stream:
            while data := stream.read(2**20):
                digest.update(data)
        if digest.hexdigest() != manifest.sha256:
            raise ValueError("its snapshot is damaged")
        return manifest
    except (OSError, tarfile.TarError, KeyError, ValueError, msgspec.DecodeError) as error:
        raise ProblemError(
            HOST_CLUSTER(f"{file} is no backup that can be used: {error}.")
        ) from error


def _host(manifest: Manifest, wish: Wish, places: Places, say: Say) -> Work:
    """The host as it is, or as it is to be where there is none of a cluster yet."""
    there = records.load(places)
    if there is not None and there.cluster.id != manifest.cluster.id:
        raise ProblemError(
            HOST_CLUSTER(
                f"This host is in cluster {there.cluster.id}; the backup is of"
                f" {manifest.cluster.id}.",
                hint="`ozy node leave` first.",
            )
        )
    begun = there or found.draft(wish, manifest.cluster, places)
    at = Work(record=begun, places=places, runner=running.runner(places), say=say)
    services.require_programs(begun)
    if not _restorer(at):
        raise ProblemError(
            HOST_CLUSTER(
                "Neither etcdutl nor etcdctl is installed here.",
                hint="apt-get install etcd-client",
            )
        )
    if there is None:
        found.require_free(at)
    return at


def _refuse_living(at: Work) -> None:
    """Two stores at once would give the same work to two hosts each."""
    others = [url for url in at.record.endpoints if url != at.record.client_url]
    if living := work.run(_living(at, others)):
        raise ProblemError(_still_there(living))


async def _living(at: Work, others: list[str]) -> list[str]:
    found_ = []
    for url in others:
        quick = Timeouts(attempt=1.5, call=1.5)
        admin = EtcdAdmin([url], credentials.etcd_credentials(at.places), quick)
        try:
            await admin.answering()
            found_.append(url)
        except StoreError:
            pass
        finally:
            await admin.aclose()
    return found_


def _still_there(living: list[str]) -> Problem:
    return HOST_CLUSTER(
        f"Members of the store that is to be replaced still run: {', '.join(living)}.",
        hint="`ozy cluster halt` on those hosts first (pods keep running); afterwards"
        " `ozy cluster resume ADDRESS-OF-THIS-HOST` there. --force if they are beyond reach"
        " and will never come back as they are.",
    )


def _restorer(at: Work) -> str:
    return services.find("etcdutl", at.record.bin_dirs) or services.find(
        "etcdctl", at.record.bin_dirs
    )


def _unpack_store(at: Work, snapshot: Path, manifest: Manifest) -> None:
    """A new identity each time: members of the former store can't mix with these."""
    begun = at.record
    token = f"ozymandias-{begun.cluster.id}-{time.time_ns():x}"
    command = [_restorer(at), "snapshot", "restore", str(snapshot), "--name", begun.name]
    command += ["--initial-cluster", begun.initial_members[0], "--initial-cluster-token", token]
    command += ["--initial-advertise-peer-urls", begun.peer_url]
    command += ["--data-dir", str(at.places.etcd / "data")]
    at.places.etcd.mkdir(parents=True, exist_ok=True, mode=0o700)
    done = subprocess.run(
        command,
        env={**os.environ, "ETCDCTL_API": "3"},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=RESTORE_SECONDS_MAX,
        check=False,
    )
    if done.returncode:
        said = (done.stderr.strip() or "no word").splitlines()[-1]
        raise ProblemError(HOST_CLUSTER(f"etcd's data could not be restored: {said}."))
    at.say("restored", f"etcd's data of revision {manifest.revision}")


async def _begin_anew(at: Work) -> int:
    """No daemon of the former history may go on as if nothing had happened."""
    async with at.store() as store:
        listing = await store.range(keys.NODES)
        for kv in listing.kvs:
            await store.txn([], [Delete(kv.key)])
        for host in await registry.hosts(store):
            if host.name != at.record.name:
                fresh = KnownHost(**{**asdict(host), "part": "client"})
                await registry.update_host(store, fresh)
        await registry.found(store, at.record.cluster, at.known(time.time()))
    return len(listing.kvs)


# Standing still -----------------------------------------------------------------------------------


def halt(at: Work) -> None:
    """Daemon, keeper and etcd of this host; pods, ingress and names go on as they are."""
    at.stop(*STILL)


def resume(at: Work, address: str = "") -> str:
    """Go on; with an address, after the store which is there now, whatever was held here."""
    if address and address != at.record.address:
        url = f"https://{address}:{records.ETCD_PORT}"
        halt(at)
        at.put_aside_data()
        at.save(part="client", endpoints=(url,), initial_members=(), initial_state="existing")
    elif at.record.part == "store":
        at.start("etcd")
    work.run(_announce(at))
    reason = at.enlist()
    at.restart_readers(at.write_files())
    at.start()
    at.save(stage="ready")
    return reason


async def _announce(at: Work) -> None:
    """A host that joined after the copy was made is not known: it has proof that it belongs."""
    async with at.store() as store:
        await registry.found(store, at.record.cluster, at.known(time.time()))


def document(manifest: Manifest) -> dict[str, Any]:
    return asdict(manifest)
