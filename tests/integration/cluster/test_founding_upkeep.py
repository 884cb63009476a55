"""After the founding: interrupted commands, boots, leaving, backups; on real etcd with TLS."""

import asyncio
import os
import signal
import socket
import tarfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from ozymandias.cluster.founding import registry
from ozymandias.cluster.founding.running import Supervised
from ozymandias.ports import Put
from ozymandias.store import keys
from tests.integration.cluster.founded import Founded, FoundedHost, founded, until

pytestmark = pytest.mark.timeout(300)
MARK = keys.SETTINGS + b"mark"


@pytest.fixture
def hosts(tmp_path: Path) -> Iterator[Founded]:
    with founded(tmp_path) as made:
        yield made


def ended_at(host: FoundedHost, words: list[str], mark: str) -> bool:
    """Run `ozy` and kill it with -9 as soon as it says that; whether it came to that."""
    with host.spawn(*words) as process:
        assert process.stderr is not None
        for line in process.stderr:
            if mark in line:
                process.send_signal(signal.SIGKILL)
                process.wait()
                return True
        process.wait()
    return False


@pytest.mark.parametrize("mark", ["authority", "started   etcd", "started   dns"])
def test_an_interrupted_init_is_finished_by_a_second_one(hosts: Founded, mark: str) -> None:
    """Killed after any step, it goes on with the same cluster, authority and token."""
    host = hosts.host()
    assert ended_at(host, host.init_words(), mark)
    begun = host.record
    kept = {
        file: file.read_text()
        for file in (host.places.authority_cert, host.places.token)
        if file.exists()
    }
    assert begun.stage == "begun"
    done = host.init()
    assert done["cluster"] == begun.cluster.id and not done["was_ready"]
    assert all(file.read_text() == text for file, text in kept.items())
    assert host.roles() == {"h1": "member"}
    until(lambda: all(h["alive"] for h in host.status()["hosts"]), 30)


@pytest.fixture(scope="module")
def lone(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Founded]:
    with founded(tmp_path_factory.mktemp("founded")) as made:
        made.host().init("--members", "5")
        yield made


@pytest.mark.parametrize("mark", ["joined    cluster", "as a learner", "started   dns"])
def test_an_interrupted_join_is_finished_by_a_second_one(lone: Founded, mark: str) -> None:
    """Killed after any step, it goes on with the very same token, which is used up by now."""
    first, host = lone.hosts[0], lone.host()
    token = first.token()
    assert ended_at(host, host.join_words(first, token), mark)
    ran = host.ozy(*host.join_words(first, token), "-o", "json")
    assert ran.code == 0, ran.out + ran.err + host.logs()
    assert host.name in first.roles()
    # The first, third and fifth host make the number of votes odd; the others wait for those.
    roles = first.roles()
    votes = sum(role == "member" for role in roles.values())
    assert votes % 2 == 1 and len(roles) == len(lone.hosts), roles


def test_the_other_command_does_not_take_over(hosts: Founded) -> None:
    """On a host where init was interrupted join says so, and changes nothing."""
    first, host = hosts.host(), hosts.host()
    first.init()
    assert ended_at(host, host.init_words(), "authority")
    ran = host.ozy(*host.join_words(first, first.token()), "-o", "json")
    assert "`ozy cluster init` was begun on this host" in ran.problem["detail"]
    assert host.record.stage == "begun" and host.record.initial_state == "new"


def test_a_dry_run_prints_all_and_does_nothing(hosts: Founded) -> None:
    """Every file with its text, every program with its command; nothing is made."""
    host = hosts.host()
    ran = host.ozy(*host.init_words(), "--dry-run")
    assert ran.code == 0, ran.err
    for word in ("ozymandias.toml", "ETCD_CLIENT_CERT_AUTH", "supervise etcd", "ca.key", "[etcd]"):
        assert word in ran.out
    assert list(host.root.iterdir()) == []


def test_a_taken_port_is_told_before_anything_is_written(hosts: Founded) -> None:
    """Port 53 or etcd's in somebody else's hands: the problem names the program."""
    host = hosts.host()
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as taker:
        taker.bind((host.address, 53))
        ran = host.ozy(*host.init_words(), "-o", "json")
    assert "Port 53" in ran.problem["detail"] and f"pid {os.getpid()}" in ran.problem["detail"]
    assert not host.places.record.exists()
    ran = host.ozy(*host.init_words("--address", "192.0.2.77"), "-o", "json")
    assert "does not have the address" in ran.problem["detail"]


# The life of a cluster ----------------------------------------------------------------------------


async def put(host: FoundedHost, value: bytes) -> None:
    async with host.work.store() as store:
        await store.txn([], [Put(MARK, value)])


async def get(host: FoundedHost) -> bytes:
    async with host.work.store() as store:
        found = await store.get(MARK)
        return found.value if found else b""


def alive(host: FoundedHost) -> set[str]:
    return {h["name"] for h in host.status()["hosts"] if h["alive"]}


@pytest.mark.timeout(600)
def test_boot_leave_backup_and_restore(hosts: Founded, tmp_path: Path) -> None:
    """One story on three hosts and a fourth: power cut, backup, leaving, restoring, resuming."""
    h1, h2, h3 = (hosts.host() for _ in range(3))
    h1.init()
    h2.join(h1)
    assert h1.roles() == {"h1": "member", "h2": "learner"}, "two votes are no better than one"
    h3.join(h1)
    assert h1.roles() == dict.fromkeys(("h1", "h2", "h3"), "member")
    until(lambda: alive(h1) == {"h1", "h2", "h3"}, 40)

    # A power cut of all, and their boot: everything that was started before is started again.
    for host in (h1, h2, h3):
        host.crash()
    started = time.monotonic()
    for host in (h1, h2, h3):
        host.boot()
    until(lambda: alive(h1) == {"h1", "h2", "h3"}, 60, h1.logs)
    print(f"\nall three back {time.monotonic() - started:.1f} s after their boot")

    # A backup is whole, and for root's eyes only.
    asyncio.run(put(h1, b"before"))
    file = tmp_path / "backup.tar"
    manifest = h2.cluster("backup", str(file))
    assert manifest["cluster"]["id"] == h1.record.cluster.id
    assert file.stat().st_mode & 0o077 == 0
    with tarfile.open(file) as tar:
        assert {"snapshot.db", "ca.key", "manifest.json"} <= set(tar.getnames())
    asyncio.run(put(h1, b"after"))

    # A fourth host is a client; it takes the place of a member that leaves.
    h4 = hosts.host()
    h4.join(h1)
    assert h4.record.part == "client"
    left = h3.ozy("node", "leave", "--root", str(h3.root), "-o", "json")
    assert left.code == 0, left.out + left.err
    assert not h3.places.record.exists() and not h3.places.certificates.exists()
    until(lambda: h1.roles() == dict.fromkeys(("h1", "h2", "h4"), "member"), 60, h4.logs)
    until(lambda: alive(h1) == {"h1", "h2", "h4"}, 40, h1.logs)

    # Restoring beside living members is refused; with them halted the old state is back.
    refused = h1.ozy("cluster", "restore", str(file), "--root", str(h1.root), "-o", "json")
    assert "still run" in refused.problem["detail"] and asyncio.run(get(h1)) == b"after"
    for host in (h2, h4):
        host.cluster("halt")
    h1.cluster("restore", str(file))
    assert asyncio.run(get(h1)) == b"before"
    assert h1.roles() == {"h1": "member"}
    for host in (h2, h4):
        host.cluster("resume", h1.address)
    until(lambda: h1.roles() == dict.fromkeys(("h1", "h2", "h4"), "member"), 60, h4.logs)
    until(lambda: {"h1", "h2", "h4"} <= alive(h1), 40, h1.logs)
    assert asyncio.run(get(h2)) == b"before"


def test_the_last_host_leaves_only_by_force(hosts: Founded) -> None:
    """With it the cluster would end; with --force nothing is left of it."""
    host = hosts.host()
    host.init()
    ran = host.ozy("node", "leave", "--root", str(host.root), "-o", "json")
    assert "only host with a vote" in ran.problem["detail"]
    assert alive(host) == {"h1"}
    ran = host.ozy("node", "leave", "--force", "--root", str(host.root), "-o", "json")
    assert ran.code == 0, ran.out + ran.err
    assert not list(host.places.settings.glob("*")) and not host.places.etcd.exists()
    with pytest.raises(OSError):
        Supervised(host.places)._ask(do="status")


def test_a_host_that_is_gone_is_removed_by_another(hosts: Founded) -> None:
    """Its place in the store, its records and its token's uses are free again for a new one."""
    h1, h2, h3 = (hosts.host() for _ in range(3))
    h1.init()
    h2.join(h1)
    h3.join(h1)
    h3.crash()
    h1.cluster("remove", "h3")
    # Two votes are left and no other host: the one that joined last gives up its vote.
    until(lambda: h1.roles() == {"h1": "member", "h2": "learner"}, 60, h2.logs)

    async def names() -> set[str]:
        async with h1.work.store() as store:
            return {host.name for host in await registry.hosts(store)}

    assert asyncio.run(names()) == {"h1", "h2"}
