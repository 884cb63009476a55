"""podman's service as the daemon uses it: does it answer, is the network there, are the images?

Plain HTTP over its Unix socket, with short deadlines: a service that hangs is a finding.
"""

import http.client
import json
import socket
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any
from urllib.parse import quote

from ozymandias.cluster.doctor.check import Check, fail, ok, warn
from ozymandias.model.job import JobKey, PullPolicy

PREFIX = "/v4.0.0/libpod"
ANSWER_SECONDS_MAX = 3.0
ANSWER_BYTES_MAX = 2**20


class UnixConnection(http.client.HTTPConnection):
    """HTTP over a Unix socket."""

    def __init__(self, path: Path, timeout: float) -> None:
        super().__init__("localhost", timeout=timeout)
        self._path = path

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.settimeout(self.timeout)
        self.sock.connect(str(self._path))


def get(path: Path, target: str, timeout: float = ANSWER_SECONDS_MAX) -> tuple[int, bytes]:
    """OSError (TimeoutError among them) when nobody answers."""
    connection = UnixConnection(path, timeout)
    try:
        connection.request("GET", target)
        answer = connection.getresponse()
        return answer.status, answer.read(ANSWER_BYTES_MAX)
    except http.client.HTTPException as error:
        raise ConnectionError(str(error)) from error
    finally:
        connection.close()


def examine(
    path: Path,
    network: str,
    images: Mapping[str, tuple[PullPolicy, tuple[JobKey, ...]]],
    *,
    start: str = "`systemctl start podman.socket`.",
    restart: str = "Restart it (`systemctl restart podman.service`)",
) -> Iterator[Check]:
    """`start` is what brings the service back when it is gone, `restart` when it hangs."""
    name = "podman service"
    try:
        get(path, f"{PREFIX}/_ping")
        get(path, f"{PREFIX}/pods/json")  # takes podman's locks, where it hangs when it does
    except TimeoutError:
        yield fail(
            name,
            f"{path} is there, but no answer within {ANSWER_SECONDS_MAX:.0f} s: it hangs",
            f"{restart}; pods keep running meanwhile."
            " `ps -eo pid,stat,wchan,args | grep podman` shows what it waits for.",
        )
        return
    except OSError as error:
        yield fail(name, f"no answer at {path}: {error.strerror or error}", start)
        return
    yield ok(name, f"answers at {path}")
    yield from _network(path, network)
    yield from _images(path, images)


def _network(path: Path, name: str) -> Iterator[Check]:
    if get(path, f"{PREFIX}/networks/{quote(name, safe='')}/exists")[0] == 404:
        yield fail(
            "pod network",
            f"podman has no network {name}: no pod can be started",
            "The daemon makes it when it starts; restart it. `podman network ls` shows the others.",
        )
        return
    status, body = get(path, f"{PREFIX}/networks/{quote(name, safe='')}/json")
    found: dict[str, Any] = json.loads(body) if status == 200 else {}
    bridge = str(found.get("network_interface", ""))
    subnets = ", ".join(s["subnet"] for s in found.get("subnets") or ())
    is_up = not bridge or Path(f"/sys/class/net/{bridge}").exists()
    if not is_up and _running(path, name):
        yield fail(
            "pod network",
            f"pods run, but the bridge {bridge} is gone: nobody reaches them",
            "`podman network reload --all`, or restart the pods (`ozy restart`).",
        )
    else:
        yield ok("pod network", f"{name}, {subnets}")


def _running(path: Path, network: str) -> bool:
    wanted = quote(json.dumps({"network": [network], "status": ["running"]}))
    status, body = get(path, f"{PREFIX}/containers/json?filters={wanted}")
    return status == 200 and bool(json.loads(body))


def _images(
    path: Path, images: Mapping[str, tuple[PullPolicy, tuple[JobKey, ...]]]
) -> Iterator[Check]:
    """Those that can't be pulled must be here; the others are fetched when they are needed."""
    for image, (policy, jobs) in sorted(images.items()):
        if get(path, f"{PREFIX}/images/{quote(image, safe='')}/exists")[0] != 404:
            continue
        names = ", ".join(sorted({str(job) for job in jobs}))
        if policy is PullPolicy.NEVER or image.startswith("localhost/"):
            yield fail(
                f"image {image}",
                f"is not on this machine, and {names} will not pull it",
                f"`podman build -t {image} …` or `podman load` here, on every node.",
            )
        else:
            yield warn(
                f"image {image}",
                f"is not on this machine yet; {names} will pull it",
                f"`podman pull {image}` tells whether it can be had.",
            )
