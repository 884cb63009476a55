"""Holes that others had, each as a test that ours does not: named after the CVE it is learnt from.

Those of the ingress and of the API have theirs beside their other tests.
"""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from aiohttp import web

from ozymandias.jobspec.parse import parse
from ozymandias.model.job import HealthCheck, HealthKind
from ozymandias.ports import RuntimeFailed
from ozymandias.problems import HOST_TAKEN, Problem, ProblemError
from ozymandias.runtime.probes import make_session, probe_http
from ozymandias.runtime.volumes import make_directories
from tests.unit.core.builders import cluster, job, submit, submitted


def complaints(text: str) -> list[str]:
    """Everything that is wrong with a job file."""
    with pytest.raises(ProblemError) as raised:
        parse(text.encode())
    return [error["detail"] for error in raised.value.problem.fields["errors"]]


@pytest.mark.parametrize("level", ["", "namespace", "namespace/job"])
def test_cve_2021_25741_no_link_is_followed_on_the_way_to_a_volume(
    tmp_path: Path, level: str
) -> None:
    """A link in place of any directory above a volume is refused; nothing is made behind it."""
    base, outside = tmp_path / "volumes", tmp_path / "outside"
    outside.mkdir()
    parts = [*level.split("/"), "trap"] if level else ["trap"]
    link = base.joinpath(*parts)
    link.parent.mkdir(parents=True)
    link.symlink_to(outside)
    with pytest.raises(RuntimeFailed):
        make_directories(base, [*parts, "data"])
    assert list(outside.iterdir()) == []


@pytest.mark.parametrize("name", ["..", "../../bin/x", "a/b", "/etc", "a\0b", ".hidden", ""])
def test_cve_2026_7474_a_name_is_never_a_path(tmp_path: Path, name: str) -> None:
    """Neither the job file nor the volume's maker takes a path for a name."""
    with pytest.raises(RuntimeFailed):
        make_directories(tmp_path, [name])
    quoted = name.replace("\0", "\\0")
    text = f'name: "{quoted}"\ncontainers: {{a: {{image: x}}}}\n'
    assert complaints(text)


@pytest.mark.parametrize("path", ["/data/../../etc", "../etc", "data", "/", "/proc/self", "/sys"])
def test_cve_2024_1329_a_volume_stays_inside_its_container(path: str) -> None:
    """A mount's path that leaves its place, or covers the kernel's, is refused."""
    volume = f"{{type: local, path: '{path}', space: 10M}}"
    assert complaints(f"name: a\ncontainers: {{a: {{image: x, volumes: [{volume}]}}}}\n")


@pytest.mark.parametrize(
    "field",
    [
        "privileged: true",
        "network_mode: host",
        "pid: host",
        "ipc: host",
        "userns_mode: host",
        "devices: [/dev/sda]",
        "security_opt: [seccomp=unconfined]",
        "cgroup_parent: /",
        "volumes: ['/:/host']",
        "volumes: [{type: bind, source: /, target: /host, space: 1G}]",
    ],
)
def test_cve_2026_14891_no_field_opens_the_host(field: str) -> None:
    """Every way to the host's own namespaces, devices or files is refused, none is ignored."""
    assert complaints(f"name: a\ncontainers: {{a: {{image: x, {field}}}}}\n")


@pytest.mark.parametrize(
    "text",
    [
        "a: &a [x]\n" + "".join(f"b{i}: &b{i} [*a, *a, *a]\n" for i in range(50)),
        "[" * 20_000,
        "{" * 20_000,
        "a: {<<: {b: 1}}\n",
    ],
)
def test_cve_2019_11253_a_small_file_costs_little(text: str) -> None:
    """Bombs of aliases, brackets and merges are refused while they are being read."""
    assert complaints(text)


def test_cve_2020_8554_a_host_name_has_one_owner() -> None:
    """A job can't take the host of another one, nor its default host."""
    snapshot = submitted(cluster(n1="4G"), parse(served("web", "shop.example")))
    for host in ("shop.example", "SHOP.example"):
        problem = submit(snapshot, parse(served("thief", host)))
        assert isinstance(problem, Problem) and problem.kind is HOST_TAKEN
    snapshot = submitted(snapshot, job(name="other"))


def served(name: str, host: str) -> bytes:
    return (
        f"name: {name}\ncontainers: {{a: {{image: x, ports: ['80:80']}}}}\n"
        f"ingress: [{{host: {host}, port: 80}}]\n"
    ).encode()


@pytest.fixture
async def redirecting() -> AsyncIterator[tuple[int, list[str]]]:
    """A server on loopback that redirects every request elsewhere, and what it was asked."""
    asked: list[str] = []

    async def answer(request: web.Request) -> web.Response:
        asked.append(request.path)
        return web.Response(status=302, headers={"Location": "/metadata"})

    app = web.Application()
    app.router.add_get("/{tail:.*}", answer)
    runner = web.AppRunner(app)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    yield runner.addresses[0][1], asked
    await runner.cleanup()


@pytest.mark.parametrize("path", ["/", "/@metadata/", "//metadata/", "/x?u=http://metadata/"])
async def test_cve_2020_8562_a_probe_asks_its_pod_and_nobody_else(
    redirecting: tuple[int, list[str]], path: str
) -> None:
    """The target is the pod's address whatever the path says, and no redirect is followed."""
    port, asked = redirecting
    check = HealthCheck(kind=HealthKind.HTTP, port=port, path=path, timeout_seconds=5)
    async with make_session() as session:
        result = await probe_http(session, "127.0.0.1", check)
    assert (result.healthy, result.reason) == (False, "HTTP 302")
    assert len(asked) == 1 and asked[0] != "/metadata"
