"""TLS, mutual TLS and passwords against real etcd."""

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest
import trustme

from ozymandias.ports import Denied, Put, Unavailable
from ozymandias.store.etcd import Credentials, EtcdStore, Timeouts
from tests.etcd_server import EtcdCluster
from tests.integration.store.contract import create, keeping, put, take, until_refreshed, watching

QUICK = Timeouts(attempt=1.0, call=3.0)


class Certificates:
    def __init__(self, directory: Path) -> None:
        self.authority = trustme.CA()
        server = self.authority.issue_cert("127.0.0.1", "localhost")
        client = self.authority.issue_cert("daemon.example", common_name="daemon")
        self.ca = self.authority.cert_pem.bytes()
        self.cert = client.cert_chain_pems[0].bytes()
        self.key = client.private_key_pem.bytes()
        self.options = []
        files = {
            "cert-file": server.cert_chain_pems[0],
            "key-file": server.private_key_pem,
        }
        for option, blob in files.items():
            blob.write_to_path(str(directory / option))
            self.options.append(f"--{option}={directory / option}")
        self.authority.cert_pem.write_to_path(str(directory / "ca"))
        self.mutual_options = ["--client-cert-auth", f"--trusted-ca-file={directory / 'ca'}"]


@pytest.fixture
def certificates(tmp_path: Path) -> Certificates:
    return Certificates(tmp_path)


async def use(store: EtcdStore, prefix: bytes) -> None:
    """A bit of everything: each kind of call has its own way through the client."""
    lease = await store.grant(2)
    revision = await put(store, prefix + b"a", b"1", lease.id)
    async with watching(store, prefix, revision) as batches, keeping(store, lease) as kept:
        assert len(await take(batches, 1)) == 1
        await until_refreshed(lease, kept)
        assert await store.get(prefix + b"a") is not None
    await store.revoke(lease)


@pytest.mark.parametrize("mutual", [False, True])
async def test_tls(certificates: Certificates, prefix: bytes, mutual: bool) -> None:
    """With the right certificates all works; with wrong or no ones nothing is reached."""
    right = Credentials(ca=certificates.ca)
    wrong = [Credentials(ca=trustme.CA().cert_pem.bytes())]
    options = list(certificates.options)
    if mutual:
        options += certificates.mutual_options
        wrong.append(right)
        right = Credentials(ca=certificates.ca, cert=certificates.cert, key=certificates.key)
    with EtcdCluster.start(1, scheme="https", options=options) as cluster:
        store = EtcdStore.connect(cluster.endpoints, right, QUICK)
        await use(store, prefix)
        await store.aclose()
        bare = [endpoint.removeprefix("https://") for endpoint in cluster.endpoints]
        store = EtcdStore.connect(bare, right, QUICK)  # a certificate authority implies TLS
        assert await store.get(prefix) is None
        await store.aclose()
        for credentials in wrong:
            store = EtcdStore.connect(cluster.endpoints, credentials, Timeouts(call=1.0))
            with pytest.raises(Unavailable):
                await put(store, prefix)
            await store.aclose()


@pytest.fixture
def guarded() -> Iterator[EtcdCluster]:
    """Tokens of one second; root may do all, bob may read and write under /bob/."""
    with EtcdCluster.start(1, options=["--auth-token-ttl=1"]) as cluster:
        cluster.ctl("user", "add", "root:secret")
        cluster.ctl("user", "grant-role", "root", "root")
        cluster.ctl("user", "add", "bob:word")
        cluster.ctl("role", "add", "bobs")
        cluster.ctl("role", "grant-permission", "bobs", "readwrite", "/bob/", "/bob0")
        cluster.ctl("user", "grant-role", "bob", "bobs")
        yield cluster


async def test_passwords(guarded: EtcdCluster) -> None:
    """A user works beyond the life of a token, and not beyond its permissions."""
    early = EtcdStore.connect(guarded.endpoints, Credentials(user="bob", password="word"), QUICK)
    await use(early, b"/bob/early/")  # nobody is asked for a password yet
    guarded.ctl("auth", "enable")
    await use(early, b"/bob/early/")
    await early.aclose()

    bob = EtcdStore.connect(guarded.endpoints, Credentials(user="bob", password="word"), QUICK)
    await use(bob, b"/bob/use/")
    await asyncio.sleep(2.5)  # longer than a token lives unused
    await asyncio.gather(*(bob.txn((), (Put(b"/bob/%d" % n, b""),)) for n in range(10)))
    revision = (await bob.range(b"/bob/")).revision
    with pytest.raises(Denied):
        await bob.get(b"/elsewhere")
    with pytest.raises(Denied):
        await put(bob, b"/elsewhere")
    with pytest.raises(Denied):
        async with watching(bob, b"/elsewhere/", revision) as batches:
            await take(batches, 1)
    assert await bob.get(b"/bob/1") is not None
    await bob.aclose()

    for credentials in (Credentials(user="bob", password="guess"), Credentials()):
        stranger = EtcdStore.connect(guarded.endpoints, credentials, QUICK)
        with pytest.raises(Denied):
            await stranger.get(b"/bob/1")
        await stranger.aclose()


async def test_a_watch_reconnects_with_an_old_token(guarded: EtcdCluster) -> None:
    """A watch whose token has expired meanwhile logs in anew when it must reconnect."""
    guarded.ctl("auth", "enable")
    store = EtcdStore.connect(guarded.endpoints, Credentials(user="root", password="secret"), QUICK)
    revision = await put(store, b"/bob/a")
    async with watching(store, b"/bob/", revision) as batches:
        await take(batches, 1)
        guarded.restart(0)
        await create(store, b"/bob/b")
        assert [e.kv.key for e in await take(batches, 1)] == [b"/bob/b"]
    await store.aclose()
