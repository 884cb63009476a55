"""What the tests of running clusters share: a cluster of `ozy up`, its API, edges and pods.

A `Cluster` lives in a directory of its own with its own context, free ports and a random subnet.
Everything is asked for as a client would: `ozy` as a process, the API by HTTP, the ingress by Host
header, names by DNS, and podman itself for the truth about containers.
"""

import http.client
import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

import dns.message
import dns.query
import dns.rdatatype

from ozymandias.cluster import state
from ozymandias.cluster.state import LocalCluster, Processes, ProcessId

BIN = Path(sys.executable).parent
DEADLINE_SECONDS = 40.0
DEMO = "localhost/ozy-demo:1"
BUSYBOX = "localhost/ozy-busybox:1"


def until(
    condition: Callable[[], Any], seconds: float = DEADLINE_SECONDS, *, say: str = ""
) -> float:
    """Wait until it is true; how long that took. The last value is shown when it never is."""
    started = time.monotonic()
    while not (last := condition()):
        assert time.monotonic() - started < seconds, f"not in {seconds:.0f} s: {say} {last!r}"
        time.sleep(0.05)
    return time.monotonic() - started


def web(name: str, *, instances: int = 1, **more: Any) -> dict[str, Any]:
    """A job of the demo server, checked every half second; fields of its container may be given."""
    job = {key: more.pop(key) for key in ("namespace", "ingress") if key in more}
    container = {
        "image": DEMO,
        "pull_policy": "never",
        "memory": "16M",
        "ports": ["80:8000"],
        "healthcheck": {"type": "http", "port": 8000, "path": "/healthz", "interval": 0.5},
        "stop_grace_period": 2,
    }
    return {"name": name, "numInstances": instances, "containers": {"web": container | more}} | job


def shell(name: str, script: str, **more: Any) -> dict[str, Any]:
    """A job of one busybox that runs a script."""
    job = {key: more.pop(key) for key in ("namespace", "numInstances") if key in more}
    container = {
        "image": BUSYBOX,
        "pull_policy": "never",
        "memory": "16M",
        "command": ["sh", "-c", script],
        "stop_grace_period": 0,
    }
    return {"name": name, "containers": {"main": container | more}} | job


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    status: int
    headers: Mapping[str, str]
    body: bytes

    @property
    def document(self) -> Any:
        return json.loads(self.body)

    @property
    def slug(self) -> str:
        """Of the problem that it is."""
        assert self.headers["content-type"].startswith("application/problem+json"), self
        return str(self.document["type"].rpartition("#")[2])


@dataclass
class Cluster:
    """One cluster of `ozy up`, and a person who types `ozy`."""

    directory: Path
    environment: dict[str, str] = field(init=False)

    def __post_init__(self) -> None:
        kept = {k: v for k, v in os.environ.items() if not k.startswith("OZY_")}
        self.environment = kept | {"OZY_CONTEXT": str(self.directory / "context.json")}

    @property
    def state_dir(self) -> Path:
        return self.directory / "cluster"

    # As a person ---------------------------------------------------------------------------------

    def spawn(self, *arguments: str, **more: Any) -> "subprocess.Popen[str]":
        return subprocess.Popen(
            [str(BIN / "ozy"), *arguments],
            env=self.environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            # A suite started in the background ignores Ctrl-C, and so would what it starts.
            preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
            **more,
        )

    def ozy(self, *arguments: str, code: int = 0) -> Any:
        """`ozy … -o json`: its document. The exit code is checked."""
        return json.loads(self.text(*arguments, "-o", "json", code=code))

    def text(self, *arguments: str, code: int = 0) -> str:
        """What `ozy` printed, for people, stderr after stdout."""
        with self.spawn(*arguments) as process:
            out, err = process.communicate(timeout=90)
        assert process.returncode == code, f"{process.returncode}: {out}{err}"
        assert "Traceback" not in out + err
        return out + (err if "-o" not in arguments else "")

    def file(self, job: Mapping[str, Any]) -> str:
        path = self.directory / f"{job['name']}.yaml"
        path.write_text(json.dumps(job))
        return str(path)

    def up(self, *options: str, lease_seconds: int = 0) -> Self:
        """`ozy up`; with other leases than its own where a slow machine must not matter."""
        arguments = (
            *("up", "--state-dir", str(self.state_dir), "--api-port=0", "--ingress-port=0"),
            *("--memory=1G", "--disk=1G", *options),
        )
        if not lease_seconds:
            self.ozy(*arguments)
            return self
        program = (
            "from ozymandias.cluster import programs; from ozymandias.cli.main import main; "
            f"programs.LEASE_TTL_SECONDS = {lease_seconds}; main()"
        )
        subprocess.run(
            [sys.executable, "-c", program, *arguments],
            env=self.environment,
            check=True,
            capture_output=True,
            timeout=90,
        )
        return self

    def down(self) -> None:
        if self.state_dir.exists():
            self.ozy("down", "--state-dir", str(self.state_dir))

    @property
    def local(self) -> LocalCluster:
        found = state.load(self.state_dir)
        assert found is not None
        return found

    # As a client of the API ----------------------------------------------------------------------

    def request(
        self, method: str, path: str, body: Any = None, *, node: str = "n1", timeout: float = 20.0
    ) -> Answer:
        local = self.local
        found = local.node(node)
        assert found is not None
        connection = http.client.HTTPConnection("127.0.0.1", found.api_port, timeout=timeout)
        content = body if isinstance(body, bytes | None) else json.dumps(body).encode()
        headers = {"Authorization": f"Bearer {local.token_file.read_text().strip()}"}
        try:
            connection.request(method, path, content, headers)
            response = connection.getresponse()
            named = {name.lower(): value for name, value in response.getheaders()}
            return Answer(status=response.status, headers=named, body=response.read())
        finally:
            connection.close()

    def get(self, path: str, *, node: str = "n1") -> Any:
        answer = self.request("GET", path, node=node)
        assert answer.status == 200, answer
        return answer.document

    def submit(self, job: Mapping[str, Any], *, wait: bool = True, node: str = "n1") -> Any:
        """Sent as it is; with `wait` until all instances of that version are healthy."""
        answer = self.request("POST", "/v1/jobs", dict(job), node=node)
        assert answer.status in (200, 201), answer
        if wait:
            self.wait_healthy(job["name"], namespace=job.get("namespace", "default"))
        return answer.document

    def wait_healthy(self, name: str, *, namespace: str = "default", seconds: float = 40) -> None:
        def is_healthy() -> bool:
            found = self.status(name, namespace=namespace)
            return (
                found["healthy"]
                == found["up_to_date"]
                == found["wanted"]
                == len([row for row in found["instances"] if row["node"]])
            )

        until(is_healthy, seconds, say=f"{name} healthy")

    def status(self, name: str, *, namespace: str = "default") -> Any:
        return self.get(f"/v1/jobs/{namespace}/{name}")

    def rows(self, name: str, *, namespace: str = "default", node: str = "n1") -> list[Any]:
        found = self.get(f"/v1/instances?namespace={namespace}&job={name}", node=node)
        return list(found["items"])

    def row(self, instance: str, *, namespace: str = "default") -> Any:
        job = instance.rpartition("-")[0]
        return next(
            (r for r in self.rows(job, namespace=namespace) if r["instance"] == instance), {}
        )

    def nodes(self, *, node: str = "n1") -> dict[str, Any]:
        return {row["name"]: row for row in self.get("/v1/nodes", node=node)["items"]}

    def events(self, job: str = "") -> list[Any]:
        return list(self.get(f"/v1/events?job={job}")["items"])

    def run(self, instance: str, *command: str, container: str = "") -> tuple[int, str]:
        """Exit code and output of a command in a container."""
        body = {"command": command, "timeout_seconds": 20}
        if container:
            body["container"] = container
        answer = self.request("POST", f"/v1/instances/default/{instance}/exec", body, timeout=30)
        assert answer.status == 200, answer
        found = answer.document
        return found["exit_code"], found["stdout"] + found["stderr"]

    def log(self, instance: str) -> str:
        """Everything that the instance wrote."""
        answer = self.request("GET", f"/v1/instances/default/{instance}/logs?tail=1000")
        assert answer.status == 200, answer
        lines = [json.loads(line) for line in answer.body.decode().splitlines()]
        return "\n".join(line["text"] for line in lines)

    def stop(self, *names: str) -> None:
        """Stop jobs and wait until they are gone; those that are not there are passed over."""
        for name in names:
            self.request("DELETE", f"/v1/jobs/default/{name}")
        until(
            lambda: all(
                self.request("GET", f"/v1/jobs/default/{name}").status == 404 for name in names
            ),
            say=f"{names} gone",
        )

    # The edges -----------------------------------------------------------------------------------

    def fetch(self, host: str, path: str = "/", *, timeout: float = 10.0) -> Answer:
        """One request through the ingress."""
        port = self.local.ingress_port
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=timeout)
        try:
            connection.request("GET", path, headers={"Host": host})
            response = connection.getresponse()
            named = {name.lower(): value for name, value in response.getheaders()}
            return Answer(status=response.status, headers=named, body=response.read())
        finally:
            connection.close()

    def resolve(self, name: str, kind: str = "A") -> list[str]:
        """What the DNS responder answers; empty when there is no such name."""
        question = dns.message.make_query(name, kind)
        answer = dns.query.udp(question, "127.0.0.1", port=self.local.dns_port, timeout=5)
        wanted = dns.rdatatype.from_text(kind)
        return sorted(r.to_text() for rrset in answer.answer for r in rrset if r.rdtype == wanted)

    # The truth -----------------------------------------------------------------------------------

    def containers(self) -> dict[str, str]:
        """Id -> when it was started, of all containers of the cluster, by podman's word."""
        label = f"--filter=label=ozymandias.cluster={self.local.id}"
        lines = podman("ps", "--all", "--no-trunc", "--format={{.ID}}={{.StartedAt}}", label)
        return dict(line.split("=") for line in lines)

    def process(self, name: str) -> ProcessId:
        """The running process of that name: etcd, podman, ingress, dns, supervisor, n1, …"""
        until(lambda: name in Processes.load(self.state_dir).alive(), say=f"{name} runs")
        return Processes.load(self.state_dir).alive()[name]

    def kill(self, name: str, number: signal.Signals = signal.SIGKILL) -> None:
        """Signal it and wait until the supervisor has started its successor."""
        former = self.process(name)
        former.kill(number)
        until(
            lambda: Processes.load(self.state_dir).alive().get(name, former) != former,
            say=f"{name} started again",
        )

    def tracebacks(self) -> str:
        """Where programs of the cluster hit a bug, by their logs."""
        found = []
        for log in self.state_dir.glob("logs/*.log"):
            text = log.read_text(errors="replace")
            if "Traceback" in text:
                found.append(f"{log.name}: {text[max(0, text.find('Traceback') - 500) :][:6000]}")
        return "\n".join(found)

    @contextmanager
    def hanging(self, name: str) -> Iterator[None]:
        """The process is stopped for that while: it holds its sockets and answers nothing."""
        process = self.process(name)
        process.kill(signal.SIGSTOP)
        try:
            yield
        finally:
            process.kill(signal.SIGCONT)


def podman(*arguments: str) -> list[str]:
    done = subprocess.run(["podman", *arguments], capture_output=True, text=True, check=True)
    return done.stdout.split()


class Requester:
    """Asks the ingress again and again, from several threads, and keeps what went wrong.

    Odd threads keep their connection, even ones make a new one for every request.
    """

    def __init__(self, cluster: Cluster, host: str, *, threads: int = 2) -> None:
        self._port, self._host = cluster.local.ingress_port, host
        self._stop = threading.Event()
        self._threads = [
            threading.Thread(target=self._run, args=(number % 2 == 1,)) for number in range(threads)
        ]
        self._lock = threading.Lock()
        self.failures: list[str] = []
        self.answers = 0
        self.instances: dict[str, int] = {}

    def __enter__(self) -> Self:
        for thread in self._threads:
            thread.start()
        until(lambda: self.answers or self.failures)
        return self

    def __exit__(self, *error: object) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join(timeout=30)

    def _run(self, keep: bool) -> None:
        connection: http.client.HTTPConnection | None = None
        while not self._stop.wait(0.005):
            began = time.monotonic()
            try:
                connection = connection or http.client.HTTPConnection(
                    "127.0.0.1", self._port, timeout=10
                )
                connection.request("GET", "/", headers={"Host": self._host})
                response = connection.getresponse()
                text = response.read().decode()
                failure = "" if response.status == 200 else f"{response.status}: {text}"
            except (OSError, http.client.HTTPException) as error:
                failure, text = repr(error), ""
            if connection and (failure or not keep):
                connection.close()
                connection = None
            with self._lock:
                self._note(failure, text, time.monotonic() - began)
        if connection:
            connection.close()

    def _note(self, failure: str, text: str, seconds: float) -> None:
        self.answers += 1
        if failure:
            self.failures.append(f"after {seconds:.2f} s: {failure}")
        for line in text.splitlines():
            if line.startswith("instance: "):
                name = line.removeprefix("instance: ")
                self.instances[name] = self.instances.get(name, 0) + 1

    def more(self, count: int = 20) -> None:
        """Wait for so many more answers."""
        wanted = self.answers + count
        until(lambda: self.answers >= wanted, say=f"{count} more answers")


@contextmanager
def running_cluster(*options: str, lease_seconds: int = 0) -> Iterator[Cluster]:
    """A cluster of its own, removed in the end whatever happens."""
    with tempfile.TemporaryDirectory(prefix="ozy-test-") as directory:
        cluster = Cluster(directory=Path(directory))
        try:
            yield cluster.up(*options, lease_seconds=lease_seconds)
        finally:
            bugs = cluster.tracebacks()
            cluster.down()
        assert not bugs, bugs
