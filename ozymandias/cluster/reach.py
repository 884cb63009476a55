"""Asking a local cluster: the supervisor over its socket, the API, the ingress and DNS by network.

Small synchronous calls with short deadlines, of the standard library alone: `ozy up` polls with
them until the cluster is ready, and nothing may be slow to import.
"""

import http.client
import json
import secrets
import socket
import ssl
import struct
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ozymandias.cluster.state import LocalCluster
from ozymandias.problems import LOCAL_CLUSTER, Kind, ProblemError

API_SECONDS_MAX = 2.0
ANSWER_SIZE_MAX_BYTES = 4 * 2**20


def ask(path: Path, kind: Kind, *, timeout: float, **request: Any) -> Any:
    """One request to the supervisor at that socket; its answer. OSError when there is none."""
    with socket.socket(socket.AF_UNIX) as connection:
        connection.settimeout(timeout)
        connection.connect(str(path))
        connection.sendall(json.dumps(request).encode() + b"\n")
        with connection.makefile("rb") as stream:
            line = stream.readline(ANSWER_SIZE_MAX_BYTES)
    if not line:
        raise ConnectionError("the supervisor closed the connection")
    answer = json.loads(line)
    if "error" in answer:
        raise ProblemError(kind(f"The supervisor refused: {answer['error']}."))
    return answer


def ask_supervisor(cluster: LocalCluster, *, timeout: float = 5.0, **request: Any) -> Any:
    return ask(cluster.supervisor_socket, LOCAL_CLUSTER, timeout=timeout, **request)


def is_supervised(cluster: LocalCluster) -> bool:
    try:
        return bool(ask_supervisor(cluster, do="status")["cluster"] == cluster.id)
    except (OSError, ValueError):
        return False


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    status: int
    body: bytes
    kind: str = ""  # Content-Type
    date: str = ""  # the other side's clock

    def json(self) -> Any:
        return json.loads(self.body)


def get(
    url: str,
    token: str = "",
    timeout: float = API_SECONDS_MAX,
    context: ssl.SSLContext | None = None,
) -> Answer:
    """GET by HTTP. OSError when nobody answers. ``context``: whose certificates are believed."""
    scheme, _, rest = url.partition("://")
    host, _, path = rest.partition("/")
    secure = scheme == "https"
    connection: http.client.HTTPConnection
    if secure:
        connection = http.client.HTTPSConnection(host, timeout=timeout, context=context)
    else:
        connection = http.client.HTTPConnection(host, timeout=timeout)
    headers = {"Authorization": f"Bearer {token}"} if token else {}
    try:
        connection.request("GET", f"/{path}", headers=headers)
        response = connection.getresponse()
        return Answer(
            status=response.status,
            body=response.read(ANSWER_SIZE_MAX_BYTES),
            kind=response.headers.get("Content-Type", ""),
            date=response.headers.get("Date", ""),
        )
    except http.client.HTTPException as error:
        raise ConnectionError(str(error)) from error
    finally:
        connection.close()


def read_token(file: Path) -> str:
    return file.read_text().strip()


def answers(url: str) -> bool:
    """Whether HTTP is spoken there, whatever is said."""
    try:
        return get(url).status > 0
    except OSError:
        return False


def is_node_ready(cluster: LocalCluster, name: str) -> bool:
    """By the node's own word."""
    node = cluster.node(name)
    try:
        return node is not None and get(f"http://127.0.0.1:{node.api_port}/readyz").status == 200
    except OSError:
        return False


def nodes(cluster: LocalCluster) -> list[dict[str, Any]]:
    """The rows of `/v1/nodes`, from the first node that answers; none when nobody does."""
    for endpoint in cluster.endpoints:
        try:
            answer = get(f"{endpoint}/v1/nodes", read_token(cluster.token_file))
            if answer.status == 200:
                return list(answer.json()["items"])
        except (OSError, ValueError, KeyError):
            continue
    return []


def dns_query(name: str, kind: int = 1) -> bytes:
    """A question in DNS's wire form (RFC 1035), recursion desired; kind 1 is A."""
    labels = b"".join(
        bytes([len(label)]) + label for label in name.encode("ascii").rstrip(b".").split(b".")
    )
    header = struct.pack(">HHHHHH", secrets.randbelow(65536), 0x0100, 1, 0, 0, 0)
    return header + labels + b"\0" + struct.pack(">HH", kind, 1)


def dns_answers(host: str, port: int, name: str, timeout: float = 0.5) -> bool:
    """Whether somebody answers that question there, be it with `no such name`."""
    return dns_ask(host, port, name, timeout) is not None


def dns_ask(host: str, port: int, name: str, timeout: float = 0.5) -> bytes | None:
    """The answer as it came."""
    query = dns_query(name)
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asking:
        asking.settimeout(timeout)
        try:
            asking.connect((host, port))
            asking.send(query)
            answer = asking.recv(4096)
        except OSError:
            return None
    return answer if answer[:2] == query[:2] and len(answer) >= len(query) else None
