"""`ozy cluster init` and `join` on hosts of their own, with real etcd and TLS; who is refused."""

import asyncio
import contextlib
import json
import re
import ssl
import threading
import time
from collections.abc import Iterator
from email.utils import formatdate
from http.server import BaseHTTPRequestHandler, HTTPServer

import pytest
import trustme

from ozymandias.cluster.founding import authority, credentials
from ozymandias.cluster.founding.authority import Pair
from ozymandias.cluster.founding.record import API_PORT, DOOR_PORT
from ozymandias.ports import StoreError
from ozymandias.store.etcd import EtcdStore
from ozymandias.store.etcd_calls import Credentials, Timeouts
from tests.integration.cluster.founded import Founded, FoundedHost, founded, until

REFUSED = "#join-refused"
pytestmark = pytest.mark.timeout(300)


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Founded]:
    """Four hosts: three hold the store, the last one is a client."""
    with founded(tmp_path_factory.mktemp("founded")) as made:
        seconds = {}
        first = made.host()
        seconds["init"] = first.init()["seconds"]
        for _ in range(3):
            host = made.host()
            seconds[f"join {host.name}"] = host.join(first)["seconds"]
        print(f"\n{seconds}")
        yield made


def stranger(cluster: Founded, name: str = "") -> FoundedHost:
    """A host that is not in the cluster."""
    return cluster.host(name)


def test_members_stay_odd_and_all_are_alive(cluster: Founded) -> None:
    """Three of four hosts hold the store with a vote each, the fourth asks them."""
    first = cluster.hosts[0]
    assert first.roles() == {"h1": "member", "h2": "member", "h3": "member"}
    until(lambda: all(h["alive"] for h in first.status()["hosts"]), 30)
    assert [(h["name"], h["part"]) for h in first.status()["hosts"]] == [
        *(("h1", "store"), ("h2", "store"), ("h3", "store"), ("h4", "client")),
    ]
    assert not (cluster.hosts[3].places.etcd / "data").exists()


def test_every_host_learns_of_all_members(cluster: Founded) -> None:
    """Also those that were there before the others: the keeper writes their settings anew."""
    urls = {f"https://{host.address}:2379" for host in cluster.hosts[:3]}
    for host in cluster.hosts[:4]:
        until(lambda host=host: set(host.record.endpoints) == urls, 30, host.logs)
        assert all(url in host.places.toml.read_text() for url in urls)


def test_a_second_run_changes_nothing(cluster: Founded) -> None:
    """init and join on hosts that are ready say so and leave every file as it is."""
    first, second = cluster.hosts[:2]
    for host, words in (
        (first, first.init_words()),
        (second, second.join_words(first, first.token())),
    ):
        before = {p: p.stat().st_mtime_ns for p in host.places.settings.rglob("*") if p.is_file()}
        ran = host.ozy(*words, "-o", "json")
        assert ran.code == 0 and ran.document["was_ready"], ran.out + ran.err
        after = {p: p.stat().st_mtime_ns for p in host.places.settings.rglob("*") if p.is_file()}
        assert after == before
    said = first.ozy(*first.init_words())
    assert "already; nothing was changed" in said.out


def test_the_api_speaks_tls_with_the_clusters_authority(cluster: Founded) -> None:
    """ozy with the authority and the token is answered by any host; without either it is not."""
    first, last = cluster.hosts[0], cluster.hosts[3]
    token = first.places.token.read_text().strip()
    url = f"https://{last.address}:{API_PORT}"
    context = {"endpoints": [url], "token": token, "ca": first.places.authority_cert.read_text()}
    file = first.root / "context.json"
    file.write_text(json.dumps({"current": "c", "contexts": {"c": context}}))
    ran = first.ozy("nodes", "-o", "json")
    assert ran.code == 0, ran.out + ran.err
    assert {row["name"] for row in ran.document} == {"h1", "h2", "h3", "h4"}
    for change, code in (({"ca": ""}, 6), ({"token": "wrong-token-of-somebody"}, 1)):
        file.write_text(json.dumps({"current": "c", "contexts": {"c": context | change}}))
        assert first.ozy("nodes", "-o", "json").code == code
    file.unlink()


# Who is refused -----------------------------------------------------------------------------------


def refused(host: FoundedHost, first: FoundedHost, token: str, *more: str) -> str:
    ran = host.ozy(*host.join_words(first, token, *more), "-o", "json")
    assert ran.problem["type"].endswith(REFUSED), ran.out + ran.err
    assert not host.places.record.exists(), "nothing was begun"
    return str(ran.problem["detail"])


def test_wrong_used_expired_and_revoked_tokens(cluster: Founded) -> None:
    """Each is refused, and the problem says which it is as far as a guesser may know."""
    first, host = cluster.hosts[0], stranger(cluster)
    token = first.token()
    secret = token.split("-", 2)[2][:32]
    guessed = token.replace(secret, "A" * 32)
    assert "not known here, or was revoked" in refused(host, first, guessed)
    assert "not a join token" in refused(host, first, token[:-1])
    first.cluster("token", "revoke", token.split("-")[1])
    assert "not known here, or was revoked" in refused(host, first, token)
    used = first.token()
    other = stranger(cluster, "passing")
    asked = first.work  # a use is taken by whoever was let in, even if nothing came of it
    asyncio.run(_take_a_use(asked, used, other))
    assert "used up" in refused(host, first, used)
    brief = first.token("--hours", "0.0001")
    until(lambda: _is_expired(first, brief), 10)
    assert "expired" in refused(host, first, brief)
    first.cluster("remove", "passing")


async def _take_a_use(work, token: str, host: FoundedHost) -> None:  # type: ignore[no-untyped-def]
    from ozymandias.cluster.founding import registry
    from ozymandias.cluster.founding.record import KnownHost

    _, id_, rest = token.split("-", 2)
    known = KnownHost(
        name=host.name,
        address=host.address,
        machine_id="m-passing",
        part="client",
        joined=time.time(),
    )
    async with work.store() as store:
        entered = await registry.admit(store, id_, rest[:32], known)
        assert entered == known


def _is_expired(first: FoundedHost, token: str) -> bool:
    rows = first.cluster("token", "list")
    return any(row["id"] == token.split("-")[1] and row["state"] == "expired" for row in rows)


def test_of_many_with_one_token_as_many_get_in_as_it_says(cluster: Founded) -> None:
    """Ten at the same moment with a token for three: three get in, seven are refused."""
    first = cluster.hosts[0]
    token = first.token("--uses", "3")
    _, id_, rest = token.split("-", 2)

    async def race() -> list[object]:
        from ozymandias.cluster.founding import registry
        from ozymandias.cluster.founding.record import KnownHost

        async with first.work.store() as store:
            return await asyncio.gather(
                *(
                    registry.admit(
                        store,
                        id_,
                        rest[:32],
                        KnownHost(
                            name=f"racer-{n}",
                            address=f"192.0.2.{n}",
                            machine_id=f"racer-{n}",
                            part="client",
                            joined=time.time(),
                        ),
                    )
                    for n in range(10)
                ),
                return_exceptions=True,
            )

    outcomes = asyncio.run(race())
    entered = [o for o in outcomes if type(o).__name__ == "KnownHost"]
    assert len(entered) == 3, outcomes
    for n in range(10):
        if any(o.name == f"racer-{n}" for o in entered):  # type: ignore[attr-defined]
            first.cluster("remove", f"racer-{n}")


def test_names_addresses_and_machines_are_taken_once(cluster: Founded) -> None:
    """A host that says it is another one is told who has that name, address or machine id."""
    first, second = cluster.hosts[:2]
    twin = stranger(cluster, "h2")
    assert f"h2 is in the cluster already, at {second.address}" in refused(
        twin, first, first.token()
    )
    copied = stranger(cluster)
    words = ("--machine-id", f"machine-{second.root}")
    assert "in the cluster already, as h2" in refused(copied, first, first.token(), *words)
    ran = copied.ozy(
        *copied.join_words(first, first.token(), "--address", second.address), "-o", "json"
    )
    assert "is taken by" in ran.problem["detail"]  # its ports, here; elsewhere the door says it


@contextlib.contextmanager
def false_door(address: str, authority_cert: bytes, date: str = "") -> Iterator[list[bytes]]:
    """Shows a certificate of its own making and hands that authority out; what it was told."""
    heard: list[bytes] = []
    other = trustme.CA()

    class Liar(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response_only(200)
            self.send_header("Date", date or self.date_time_string())
            self.end_headers()
            self.wfile.write(authority_cert or other.cert_pem.bytes())

        def do_POST(self) -> None:
            heard.append(self.rfile.read(int(self.headers["Content-Length"])))

        def log_message(self, *_: object) -> None: ...

    server = HTTPServer((address, DOOR_PORT), Liar)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    other.issue_cert(address).configure_cert(context)
    server.socket = context.wrap_socket(server.socket, server_side=True)
    serving = threading.Thread(target=server.serve_forever)
    serving.start()
    try:
        yield heard
    finally:
        server.shutdown()
        serving.join()
        server.server_close()


def test_a_server_in_between_learns_nothing(cluster: Founded) -> None:
    """Neither with an authority of its own nor with a copy of ours is it told the secret."""
    first, host = cluster.hosts[0], stranger(cluster)
    address, token = f"{cluster.prefix}.200", first.token()
    copied = first.places.authority_cert.read_bytes()
    words = ("cluster", "join", address, token, *host.options(), "-o", "json")
    for cert, said in (
        (b"", "does not belong to the cluster that the token is for"),
        (copied, "shows a certificate that is not good"),
    ):
        with false_door(address, cert) as heard:
            ran = host.ozy(*words)
        assert ran.problem["type"].endswith(REFUSED) and said in ran.problem["detail"]
        assert heard == []


def test_a_clock_that_is_an_hour_off_is_told_before_anything_is_done(cluster: Founded) -> None:
    """The joining host compares its clock with the door's, and stops with the remedy."""
    first, host = cluster.hosts[0], stranger(cluster)
    address, token = f"{cluster.prefix}.201", first.token()
    hour_ago = formatdate(time.time() - 3600, usegmt=True)
    with false_door(address, first.places.authority_cert.read_bytes(), hour_ago) as heard:
        ran = host.ozy("cluster", "join", address, token, *host.options(), "-o", "json")
    assert re.search(r"clock is 36\d\d s ahead of", ran.problem["detail"])
    assert "chrony" in ran.problem["hint"] and heard == [] and not host.places.record.exists()


# Certificates -------------------------------------------------------------------------------------


def made_client(pair: Pair, *, now: float) -> Credentials:
    key = authority.make_key()
    cert = authority.sign(
        pair, authority.make_request(key, "x"), use="client", name="x", addresses=(), now=now
    )
    return Credentials(ca=b"", cert=cert.encode(), key=key.encode())


def test_etcd_refuses_expired_and_foreign_certificates(cluster: Founded) -> None:
    """With a good one etcd answers; expired, of another authority, or none: it does not."""
    first = cluster.hosts[0]
    pair = credentials.read_authority(first.places)
    assert pair is not None
    now, year = time.time(), 366 * 86_400
    other = authority.make_authority("other", now)

    async def answers(found: Credentials) -> bool:
        trusted = Credentials(ca=pair.cert.encode(), cert=found.cert, key=found.key)
        quick = Timeouts(attempt=1.0, call=1.5)
        store = EtcdStore.connect([first.record.client_url], trusted, quick)
        try:
            await store.range(b"/ozymandias/v1/settings/")
            return True
        except StoreError:
            return False
        finally:
            await store.aclose()

    assert asyncio.run(answers(made_client(pair, now=now)))
    assert not asyncio.run(answers(made_client(pair, now=now - year)))
    assert not asyncio.run(answers(made_client(other, now=now)))
    assert not asyncio.run(answers(Credentials()))


def test_a_clients_certificate_does_not_make_a_member(cluster: Founded) -> None:
    """etcd's own port takes hosts' certificates only, not those of programs that ask etcd."""
    first = cluster.hosts[0]

    def answered(use: str) -> bool:
        context = ssl.create_default_context(cafile=first.places.authority_cert)
        context.load_cert_chain(first.places.cert(use), first.places.key(use))
        import http.client

        link = http.client.HTTPSConnection(first.address, 2380, timeout=3, context=context)
        try:
            link.request("GET", "/version")
            return link.getresponse().status == 200
        except OSError:
            return False
        finally:
            link.close()

    assert answered("host")
    assert not answered("client")


def test_a_host_with_a_bad_certificate_is_told_what_to_do(cluster: Founded) -> None:
    """Expired or foreign: renewing is refused, clearly; a new token lets the host in again."""
    first, last = cluster.hosts[0], cluster.hosts[3]
    pair = credentials.read_authority(first.places)
    assert pair is not None
    good = {use: last.places.cert(use).read_text() for use in credentials.USES}
    kept_key = last.places.authority_key.read_text() if last.places.authority_key.exists() else ""
    last.places.authority_key.unlink(missing_ok=True)
    year = 366 * 86_400
    other = authority.make_authority("other", time.time())
    try:
        for signer, now, word in ((pair, time.time() - year, "expired"), (other, time.time(), "")):
            asked = credentials.requests(last.places, last.name)
            certs = credentials.sign_all(
                signer, asked, name=last.name, address=last.address, now=now
            )
            credentials.write_certificates(last.places, certs)
            ran = last.ozy("cluster", "renew", "--root", str(last.root), "-o", "json")
            assert ran.problem["type"].endswith(REFUSED), ran.out
            assert "`ozy cluster join` with a new token" in ran.problem["hint"]
            status = last.status()
            problems = {row["problem"] for row in status["certificates"]}
            assert all(problems) and all(word in problem for problem in problems)
        again = last.ozy(*last.join_words(first, first.token()), "-o", "json")
        assert again.code == 0, again.out + again.err
        assert not any(row["problem"] for row in last.status()["certificates"])
        assert last.places.cert("host").read_text() != good["host"]
    finally:
        if kept_key and not last.places.authority_key.exists():
            last.places.authority_key.write_text(kept_key)


def test_certificates_are_renewed_here_or_through_the_door(cluster: Founded) -> None:
    """On a host with the authority's key by itself, on a client by another host's keeper."""
    member, client = cluster.hosts[1], cluster.hosts[3]
    client.places.authority_key.unlink(missing_ok=True)
    for host in (member, client):
        before = authority.read(host.places.cert("host").read_text())
        assert "daemon" in host.cluster("renew", "--force")["restarted"]
        after = authority.read(host.places.cert("host").read_text())
        assert after.serial != before.serial and set(after.names) == set(before.names)
        until(lambda host=host: _is_alive(cluster.hosts[0], host.name), 30, host.logs)


def _is_alive(first: FoundedHost, name: str) -> bool:
    return any(h["name"] == name and h["alive"] for h in first.status()["hosts"])
