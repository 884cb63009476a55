"""The joining host's side of the door, in two steps, so that nobody in between learns anything.

First the authority's certificate is fetched from a server that is not believed; its fingerprint
must be the one that the token carries. Then, with that authority and no other, the real connection
is made, and only over it is the token's secret said.
"""

import http.client
import json
import ssl
import time
from email.utils import parsedate_to_datetime
from typing import Any

import msgspec

from ozymandias.cluster.founding import authority
from ozymandias.cluster.founding.join_token import JoinToken
from ozymandias.cluster.founding.messages import JoinAnswer, JoinRequest
from ozymandias.cluster.founding.record import DOOR_PORT, Places
from ozymandias.problems import CATALOGUE, HOST_CLUSTER, JOIN_REFUSED, Problem, ProblemError

CONNECT_SECONDS_MAX = 5.0
ANSWER_SECONDS_MAX = 30.0
ANSWER_BYTES_MAX = 2**20
CLOCK_SECONDS_MAX = 300.0


def fetch_authority(address: str, token: JoinToken) -> str:
    """The authority's certificate, proved by the token; and that our clocks agree."""
    blind = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    blind.check_hostname = False
    blind.verify_mode = ssl.CERT_NONE  # what it says is checked against the token
    status, body, date = _exchange(address, blind, "GET", "/authority", b"")
    cert = body.decode("ascii", "replace")
    try:
        shown = authority.fingerprint(cert) if status == 200 else ""
    except ValueError:
        shown = ""
    if shown != token.fingerprint:
        raise ProblemError(
            JOIN_REFUSED(
                f"{address} does not belong to the cluster that the token is for.",
                hint="Check the address; if it is right, somebody is between you and it.",
            )
        )
    _check_clock(address, date)
    return cert


def ask(address: str, ca: str, path: str, request: JoinRequest, places: Places) -> JoinAnswer:
    """`/join` or `/renew`; the latter shows this host's certificate."""
    context = ssl.create_default_context(cadata=ca)
    if path == "/renew":
        context.load_cert_chain(places.cert("host"), places.key("host"))
    status, body, _ = _exchange(address, context, "POST", path, msgspec.json.encode(request))
    if status != 200:
        raise ProblemError(_problem(address, status, body))
    try:
        return msgspec.json.decode(body, type=JoinAnswer)
    except (msgspec.DecodeError, ValueError) as error:
        raise ProblemError(HOST_CLUSTER(f"{address} answers nonsense: {error}.")) from None


def ask_reached(address: str, places: Places) -> dict[int, str]:
    """By port, why that host does not reach this one; "" where it does."""
    context = ssl.create_default_context(cafile=str(places.authority_cert))
    context.load_cert_chain(places.cert("host"), places.key("host"))
    status, body, _ = _exchange(address, context, "POST", "/reach", b"{}")
    if status != 200:
        raise ProblemError(_problem(address, status, body))
    return {int(port): str(why) for port, why in json.loads(body).items()}


def _exchange(
    address: str, context: ssl.SSLContext, method: str, path: str, body: bytes
) -> tuple[int, bytes, str]:
    host, port = address, DOOR_PORT
    connection = http.client.HTTPSConnection(
        host, port, timeout=CONNECT_SECONDS_MAX, context=context
    )
    try:
        connection.connect()
        connection.sock.settimeout(ANSWER_SECONDS_MAX)
        connection.request(method, path, body or None, {"Content-Type": "application/json"})
        answer = connection.getresponse()
        return answer.status, answer.read(ANSWER_BYTES_MAX), answer.headers.get("Date", "")
    except ssl.SSLCertVerificationError as error:
        raise ProblemError(
            JOIN_REFUSED(
                f"{address} shows a certificate that is not good: {error.verify_message}.",
                hint="If it is not valid yet or no more, compare the clocks (`timedatectl`);"
                " `ozy cluster renew` there makes a new one.",
            )
        ) from None
    except ssl.SSLError as error:
        raise ProblemError(_not_taken(address, str(error.reason))) from None
    except (http.client.RemoteDisconnected, ConnectionResetError):
        # In TLS 1.3 a certificate is refused after the handshake, and not always with a word.
        if path == "/renew":
            raise ProblemError(_not_taken(address, "it hung up")) from None
        raise ProblemError(HOST_CLUSTER(f"{address} hung up.")) from None
    except (OSError, http.client.HTTPException) as error:
        raise ProblemError(
            HOST_CLUSTER(
                f"{host}:{port} does not answer: {getattr(error, 'strerror', None) or error}.",
                hint="The address is that of a host which holds the store, and its firewall must"
                f" let port {port} through; `systemctl status ozymandias-keeper` there.",
            )
        ) from None
    finally:
        connection.close()


def _not_taken(address: str, why: str) -> Problem:
    return JOIN_REFUSED(
        f"{address} refused this host's certificate, or speaks no TLS: {why}.",
        hint="`ozy cluster join` with a new token lets the host in again.",
    )


def _check_clock(address: str, date: str) -> None:
    try:
        apart = parsedate_to_datetime(date).timestamp() - time.time()
    except (ValueError, TypeError):
        return
    if abs(apart) > CLOCK_SECONDS_MAX:
        word = "behind" if apart > 0 else "ahead of"
        raise ProblemError(
            JOIN_REFUSED(
                f"This host's clock is {abs(apart):.0f} s {word} that of {address}.",
                hint="Let chrony or systemd-timesyncd keep both; `timedatectl` shows it.",
            )
        )


def _problem(address: str, status: int, body: bytes) -> Problem:
    try:
        document: dict[str, Any] = json.loads(body)
        slug = str(document["type"]).rpartition("#")[2]
        kind = next(kind for kind in CATALOGUE if kind.slug == slug)
        return kind(str(document["detail"]), hint=str(document.get("hint", "")))
    except (ValueError, KeyError, TypeError, StopIteration):
        return HOST_CLUSTER(f"{address} answers {status} without saying why.")
