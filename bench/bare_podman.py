"""The same pod by bare podman calls: what nobody can be faster than.

Pod with its network, container with its memory limit, start, and HTTP 200 from its health path:
the same image, network and API service that the cluster uses.
"""

import http.client
import json
import socket
import time
from pathlib import Path
from typing import Any

IMAGE = "localhost/ozy-demo:1"
MEMORY_BYTES = 32 * 2**20
HEALTHY_SECONDS_MAX = 30.0


class Podman(http.client.HTTPConnection):
    def __init__(self, path: Path) -> None:
        super().__init__("localhost", timeout=60)
        self.path = path

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.settimeout(self.timeout)
        self.sock.connect(str(self.path))

    def call(self, method: str, path: str, body: Any = None) -> Any:
        data = None if body is None else json.dumps(body)
        self.request(method, f"/v4.0.0/libpod{path}", data, {"Content-Type": "application/json"})
        response = self.getresponse()
        text = response.read()
        if response.status >= 400:
            raise RuntimeError(f"{method} {path}: {response.status} {text.decode()}")
        return json.loads(text) if text.strip() else None


def start(podman: Podman, name: str, network: str, label: dict[str, str]) -> None:
    """From nothing to healthy."""
    podman.call(
        "POST",
        "/pods/create",
        {"name": name, "labels": label, "netns": {"nsmode": "bridge"}, "Networks": {network: {}}},
    )
    podman.call(
        "POST",
        "/containers/create",
        {
            "name": f"{name}-web",
            "pod": name,
            "image": IMAGE,
            "labels": label,
            "resource_limits": {"memory": {"limit": MEMORY_BYTES}},
        },
    )
    podman.call("POST", f"/pods/{name}/start")
    infra = podman.call("GET", f"/pods/{name}/json")["InfraContainerID"]
    settings = podman.call("GET", f"/containers/{infra}/json")["NetworkSettings"]
    wait_healthy(settings["Networks"][network]["IPAddress"])


def wait_healthy(address: str) -> None:
    deadline = time.monotonic() + HEALTHY_SECONDS_MAX
    while time.monotonic() < deadline:
        connection = http.client.HTTPConnection(address, 8000, timeout=1)
        try:
            connection.request("GET", "/healthz")
            if connection.getresponse().status == 200:
                return
        except OSError:
            time.sleep(0.01)
        finally:
            connection.close()
    raise RuntimeError(f"{address} did not become healthy")


def remove(podman: Podman, name: str) -> None:
    podman.call("DELETE", f"/pods/{name}?force=true&timeout=0")
