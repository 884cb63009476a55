"""What the job file accepts, in every spelling, and what it becomes."""

import json
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from ozymandias.jobspec.parse import parse
from ozymandias.jobspec.words import SIGNALS
from ozymandias.model.job import (
    Condition,
    Container,
    Dependency,
    HealthCheck,
    HealthKind,
    IngressRule,
    Job,
    JobKind,
    JobVersion,
    LabelRule,
    LabelTest,
    NetworkMode,
    Port,
    Protocol,
    PullPolicy,
    RestartMode,
    RestartPolicy,
    Tmpfs,
    Volume,
    VolumeKind,
)
from ozymandias.model.node import Demand
from ozymandias.problems import ProblemError
from ozymandias.store.codec import decode, encode

from .conftest import EXAMPLES

G = 2**30
M = 2**20

FOUNDING = Job(
    name="simple-webapp",
    instances=3,
    containers=(
        Container(
            name="app",
            image="web-app-image",
            restart=RestartPolicy(mode=RestartMode.ALWAYS),
            command=("bin/rails", "s", "--restart"),
            environment=(("DATABASE_URL", "postgresql://webapp:webapp@localhost/webapp"),),
            ports=(Port(pod=80, container=3000),),
            depends_on=(Dependency(container="db"),),
            memory_bytes=2 * G,
            healthcheck=HealthCheck(
                kind=HealthKind.HTTP,
                port=3000,
                path="/healthcheck",
                timeout_seconds=30,
                interval_seconds=60,
                healthy_threshold=2,
                unhealthy_threshold=2,
            ),
            volumes=(
                Volume(
                    kind=VolumeKind.SHARED, name="data-shared", path="/data/shared", space_bytes=G
                ),
                Volume(
                    kind=VolumeKind.LOCAL,
                    name="data-scratch",
                    path="/data/scratch",
                    space_bytes=100 * M,
                ),
            ),
        ),
        Container(
            name="db",
            image="postgres:13",
            memory_bytes=4 * G,
            environment=(
                ("POSTGRES_USER", "webapp"),
                ("POSTGRES_PASSWORD", "webapp"),
                ("POSTGRES_DB", "webapp"),
            ),
            volumes=(
                Volume(
                    kind=VolumeKind.LOCAL,
                    name="var-lib-postgresql-data",
                    path="/var/lib/postgresql/data",
                    space_bytes=10 * G,
                ),
            ),
        ),
    ),
)

Read = Callable[[str], Container]


def founding_file() -> bytes:
    return next(file for file in EXAMPLES if file.stem == "simple-webapp").read_bytes()


def test_founding_example() -> None:
    """The founding example is accepted as it stands."""
    assert parse(founding_file()) == FOUNDING


@pytest.mark.parametrize("style", ["block", "flow", "json"])
def test_founding_example_in_other_styles(style: str, document: Callable[[bytes], Any]) -> None:
    """Block style, flow style and JSON mean the same."""
    tree = document(founding_file())
    text = (
        json.dumps(tree, indent="\t")
        if style == "json"
        else yaml.safe_dump(tree, default_flow_style=style == "flow")
    )
    job = parse(text.encode())
    assert {c.name: c for c in job.containers} == {c.name: c for c in FOUNDING.containers}
    assert job.instances == FOUNDING.instances


@pytest.mark.parametrize("file", EXAMPLES, ids=lambda f: f.stem)
def test_example_survives_the_store(file: Path) -> None:
    """Every example is a job, and comes back from the store as it went in."""
    version = JobVersion(uid="u", version=1, job=parse(file.read_bytes(), file.name))
    assert decode(JobVersion, encode(version)) == version


def test_there_are_examples() -> None:
    """A newcomer finds enough to choose from, hello-world first of all."""
    assert len(EXAMPLES) >= 8
    assert "hello-world" in {file.stem for file in EXAMPLES}


def test_smallest_job_has_all_defaults() -> None:
    """Name and image are enough; everything else has its default."""
    job = parse(b"{name: web, containers: {app: {image: nginx}}}")
    assert job == Job(name="web", containers=(Container(name="app", image="nginx"),))
    assert job.containers[0].memory_bytes == 256 * M
    assert job.ingress is None


@pytest.mark.parametrize(
    "lines",
    [
        "environment: {A: b, N: 1.10, T: True, E: ''}",
        "environment: [A=b, N=1.10, T=True, E=]",
        "environment: [{name: A, value: b}, {name: N, value: 1.10}, T=True, {name: E, value: ''}]",
    ],
)
def test_environment(lines: str, container: Read) -> None:
    """All forms of the environment mean the same; values stay as they are written."""
    assert container(lines).environment == (("A", "b"), ("N", "1.10"), ("T", "True"), ("E", ""))


def test_what_looks_like_a_variable(container: Read) -> None:
    """`$${NAME}` is the text `${NAME}`; other dollars are nothing special, nor are commands."""
    found = container(
        'environment: {A: "$${HOME}/x", B: $HOME, C: "a$$b${1}"}\ncommand: "echo ${A}"'
    )
    assert found.environment == (("A", "${HOME}/x"), ("B", "$HOME"), ("C", "a$$b${1}"))
    assert found.command == ("echo", "${A}")


@pytest.mark.parametrize(
    ("lines", "port"),
    [
        ("ports: [3000]", Port(pod=3000, container=3000)),
        ('ports: ["3000"]', Port(pod=3000, container=3000)),
        ('ports: ["80:3000"]', Port(pod=80, container=3000)),
        ("ports: [22:22]", Port(pod=22, container=22)),
        ('ports: ["80:3000/tcp"]', Port(pod=80, container=3000)),
        ('ports: ["53/udp"]', Port(pod=53, container=53, protocol=Protocol.UDP)),
        ("ports: [{host: 8080, container: 80}]", Port(pod=80, container=80, host=8080)),
        ("ports: [{target: 80, published: '8080'}]", Port(pod=80, container=80, host=8080)),
        (
            "ports: [{pod: 53, container: 5353, protocol: udp}]",
            Port(pod=53, container=5353, protocol=Protocol.UDP),
        ),
    ],
)
def test_port(lines: str, port: Port, container: Read) -> None:
    """Each form of a port is read into the same three numbers."""
    assert container(lines).ports == (port,)


@pytest.mark.parametrize(
    ("lines", "expected"),
    [
        ("command: sh -c 'echo \"a b\"'", {"command": ("sh", "-c", 'echo "a b"')}),
        ("command: [sleep, 10]", {"command": ("sleep", "10")}),
        ("command: []", {"command": ()}),
        ("entrypoint: /bin/run --fast", {"entrypoint": ("/bin/run", "--fast")}),
        ("mem_limit: 512m", {"memory_bytes": 512 * M}),
        ("memory: 1.5GiB", {"memory_bytes": 3 * G // 2}),
        ("memory: 67108864", {"memory_bytes": 64 * M}),
        ("deploy: {resources: {limits: {memory: 1G, cpus: '0.5'}}}", {"memory_bytes": G}),
        ("cpus: '1.5'", {"cpu": 1.5}),
        ("cpu: 2", {"cpu": 2.0}),
        ("pull_policy: if_not_present", {"pull_policy": PullPolicy.MISSING}),
        ("pull_policy: never", {"pull_policy": PullPolicy.NEVER}),
        ("restart: no", {"restart": RestartPolicy(mode=RestartMode.NO)}),
        ('restart: "no"', {"restart": RestartPolicy(mode=RestartMode.NO)}),
        (
            "restart: on-failure:3",
            {"restart": RestartPolicy(mode=RestartMode.ON_FAILURE, attempts_max=3)},
        ),
        ("restart: unless-stopped", {"restart": RestartPolicy(mode=RestartMode.UNLESS_STOPPED)}),
        ("depends_on: [db]", {"depends_on": (Dependency(container="db"),)}),
        (
            "depends_on: {db: {condition: service_healthy}}",
            {"depends_on": (Dependency(container="db", condition=Condition.HEALTHY),)},
        ),
        ("stop_grace_period: 1m30s", {"stop_grace_seconds": 90.0}),
        ("stop_grace_period: 0", {"stop_grace_seconds": 0.0}),
        ("stop_signal: usr1", {"stop_signal": "SIGUSR1"}),
        ("stop_signal: SIGQUIT", {"stop_signal": "SIGQUIT"}),
        ("cap_add: [cap_net_admin]\ncap_drop: [all]", {"cap_add": ("NET_ADMIN",)}),
        ("tmpfs: /tmp", {"tmpfs": (Tmpfs(path="/tmp", space_bytes=64 * M),)}),
        ('tmpfs: ["/tmp:size=16M"]', {"tmpfs": (Tmpfs(path="/tmp", space_bytes=16 * M),)}),
        ("user: 1000:1000", {"user": "1000:1000"}),
        ("user: 1000", {"user": "1000"}),
        ("working_dir: /", {"working_dir": "/"}),
        ("init: true\nread_only: true", {"init": True, "read_only": True}),
        ("labels: [a=b, c.d/e=]", {"labels": (("a", "b"), ("c.d/e", ""))}),
        ("labels: {version: 1.10}", {"labels": (("version", "1.10"),)}),
    ],
)
def test_container_field(lines: str, expected: dict[str, Any], container: Read) -> None:
    """Each spelling of a container's field gives the model's value."""
    read = container(lines)
    assert {name: getattr(read, name) for name in expected} == expected


@pytest.mark.parametrize(
    ("check", "expected"),
    [
        ("{type: tcp, port: 80}", HealthCheck(kind=HealthKind.TCP, port=80)),
        ("{test: [CMD, curl, -f, localhost]}", ("curl", "-f", "localhost")),
        ("{test: [CMD-SHELL, 'a | b']}", ("/bin/sh", "-c", "a | b")),
        ("{test: 'a | b'}", ("/bin/sh", "-c", "a | b")),
        ("{type: exec, command: test -f /ok}", ("test", "-f", "/ok")),
        ("{test: [NONE]}", None),
        ("{disable: true}", None),
        (
            "{type: http, port: 80, retries: 5, start_period: 1m, interval: 500ms}",
            HealthCheck(
                kind=HealthKind.HTTP,
                port=80,
                unhealthy_threshold=5,
                start_period_seconds=60,
                interval_seconds=0.5,
            ),
        ),
    ],
)
def test_healthcheck(check: str, expected: object, container: Read) -> None:
    """Our spelling and compose's give the same health checks."""
    if isinstance(expected, tuple):
        expected = HealthCheck(kind=HealthKind.EXEC, command=expected)
    assert container(f"healthcheck: {check}").healthcheck == expected


def test_volumes(container: Read) -> None:
    """Compose's names of a volume's fields are understood, and paths are tidied."""
    volumes = container(
        "volumes:\n"
        "  - {source: files, target: /data//files/, space: 1G, keep: true}\n"
        "  - {type: shared, path: /Data/Other, space: 1M}"
    ).volumes
    assert volumes == (
        Volume(kind=VolumeKind.LOCAL, name="files", path="/data/files", space_bytes=G, keep=True),
        Volume(kind=VolumeKind.SHARED, name="data-other", path="/Data/Other", space_bytes=M),
    )


def test_shared_volume_in_two_containers() -> None:
    """One name, one shared volume: two containers may see it at different paths."""
    job = parse(
        b"name: web\ncontainers:\n"
        b"  a: {image: x, volumes: [{type: shared, name: v, path: /a, space: 1G}]}\n"
        b"  b: {image: x, volumes: [{type: shared, name: v, path: /b, space: 1024M}]}\n"
    )
    assert [c.volumes[0].name for c in job.containers] == ["v", "v"]


def test_ingress() -> None:
    """Hosts are lower case, paths are tidied, and the port is the first tcp port of the pod."""
    job = parse(
        b"name: web\ncontainers: {a: {image: x, ports: ['53/udp', '80:3000', 81]}}\n"
        b"ingress: [{host: Shop.Example, path: /a//b/}, {port: 81}]"
    )
    assert job.ingress == (
        IngressRule(host="shop.example", path="/a/b", port=80),
        IngressRule(host="", path="/", port=81),
    )
    assert parse(b"{name: web, containers: {a: {image: x}}, ingress: []}").ingress == ()


def test_signals_are_those_of_the_host() -> None:
    """Every signal that the job file knows is one that a host can send."""
    assert {f"SIG{name}" for name in SIGNALS} <= set(signal.Signals.__members__)


def test_job_fields() -> None:
    """The job's own fields, with alias and the choices that exist so far."""
    job = parse(
        b"name: web\nnamespace: team-a\ninstances: 0\ntype: service\non_partition: keep\n"
        b"labels: {team: a}\ncontainers: {a: {image: 'localhost:5000/x/y:1'}}\n"
    )
    assert (job.namespace, job.instances, job.labels) == ("team-a", 0, (("team", "a"),))


def test_problem_names_the_file_and_counts() -> None:
    """The problem itself is readable alone: file, line, column, path, detail, and how many more."""
    with pytest.raises(ProblemError) as caught:
        parse(
            b"name: web\ncontainers:\n  app:\n    image: x\n    memroy: 1G\n    cpu: x\n", "a.yaml"
        )
    problem = caught.value.problem
    start = 'a.yaml:5:5: containers.app.memroy: unknown field "memroy" (and 1 more)'
    assert problem.detail == start
    assert problem.hint == 'did you mean "memory"?'
    assert [e["pointer"] for e in problem.fields["errors"]] == [
        "containers.app.memroy",
        "containers.app.cpu",
    ]


def test_bom_and_windows_line_ends() -> None:
    """A byte order mark and CRLF are no reason to complain."""
    assert parse(b"\xef\xbb\xbfname: web\r\ncontainers: {a: {image: x}}\r\n").name == "web"


def test_json_of_any_text() -> None:
    """JSON's way to write letters beyond the basic plane is understood."""
    variables = {"A": "😀 é / \\", "B": "\n"}
    job = {"name": "web", "containers": {"a": {"image": "x", "environment": variables}}}
    assert parse(json.dumps(job).encode()).containers[0].environment == tuple(variables.items())


def best_seconds(data: bytes) -> float:
    times = []
    for _ in range(5):
        start = time.process_time()
        parse(data)
        times.append(time.process_time() - start)
    return min(times)


def test_speed() -> None:
    """An ordinary file takes a few milliseconds, the largest allowed one a tenth of a second."""
    assert best_seconds(founding_file()) < 0.005
    variables = "".join(f"      VARIABLE_{n:04}: {'x' * 10}\n" for n in range(900))
    more = "".join(
        f"  c{n}: {{image: nginx, ports: [{n + 1000}], memory: 64M, command: a b c,"
        f" healthcheck: {{type: tcp, port: {n + 1000}}}, volumes: [{{path: /d, space: 1G}}]}}\n"
        for n in range(40)
    )
    text = f"name: web\ncontainers:\n  a:\n    image: x\n    environment:\n{variables}{more}"
    data = text.encode().ljust(64 * 2**10, b"#")
    assert best_seconds(data) < 0.1


def test_rules_on_labels_are_read_short_and_in_full() -> None:
    """Both spellings of a rule give the same; preferences have a weight."""
    short = ["role == infra", "role=infra", "zone in [a, b]", "zone in (a,b)", "gpu exists"]
    short += ["cores > 4", "role != apps"]
    text = (
        "name: web\nplacement:\n  require:\n"
        + "".join(f"    - {rule}\n" for rule in short)
        + "    - {label: zone, test: in, values: [a, b]}\n    - {label: role, value: infra}\n"
        + "  prefer: [disk == ssd, {label: zone, value: a, weight: 7}]\n  max_per_node: 2\n"
        + "containers: {app: {image: nginx}}\n"
    )
    rules = parse(text.encode()).placement
    role = LabelRule(label="role", values=("infra",))
    zone = LabelRule(label="zone", test=LabelTest.IN, values=("a", "b"))
    assert rules.require == (
        *(role, role, zone, zone),
        LabelRule(label="gpu", test=LabelTest.EXISTS),
        LabelRule(label="cores", test=LabelTest.MORE, values=("4",)),
        LabelRule(label="role", test=LabelTest.UNEQUAL, values=("apps",)),
        *(zone, role),
    )
    assert [rule.weight for rule in rules.prefer] == [1, 7]
    assert rules.max_per_node == 2


def test_min_available_is_a_number_or_a_percentage() -> None:
    """A pool may have a percentage though its least is 0: that follows the present number."""
    rest = b"containers: {app: {image: nginx}}\n"
    number = parse(b"name: web\nnumInstances: 3\nmin_available: 2\n" + rest)
    percent = parse(b"name: web\nnumInstances: 3\nmin_available: 50%\n" + rest)
    assert (number.min_available, number.min_available_percent) == (2, 0)
    assert (percent.min_available, percent.min_available_percent) == (0, 50)
    pool = parse(
        b"name: web\nautoscale: {min: 0, max: 3, pending: {key: /q}}\nmin_available: 100%\n" + rest
    )
    assert pool.min_available_percent == 100


@pytest.mark.parametrize(
    ("word", "number"),
    [
        ("platform-critical", 10_000),
        ("platform-infrastructure", 9000),
        ("platform-observability", 8000),
        ("platform-security", 7000),
        ("platform-cicd", 6000),
        ("platform-low", 5000),
        ("0", 0),
        ("10000", 10_000),
    ],
)
def test_priority_is_a_number_or_a_class(word: str, number: int) -> None:
    """The predefined classes are these, and nobody's job changes its rank by an upgrade."""
    text = f"name: web\npriority: {word}\ncontainers: {{app: {{image: nginx}}}}\n"
    assert parse(text.encode()).priority == number


def test_a_pool_that_says_little_is_asked_every_30_seconds() -> None:
    """It grows by one, and has no window of its own."""
    pool = parse(
        b"name: web\nautoscale: {min: 0, max: 3, pending: {url: 'http://queue.example/'}}\n"
        b"containers: {app: {image: nginx}}\n"
    ).autoscale
    assert pool
    assert (pool.min, pool.max, pool.step, pool.every_seconds, pool.freeze) == (0, 3, 1, 30.0, ())


def test_a_system_job_has_no_number_of_instances_and_may_have_the_host_network() -> None:
    """Its ports are then the host's, and it is placed by rules alone."""
    text = (
        b"name: dns\ntype: system\nnetwork: host\npriority: platform-critical\nmin_available: 1\n"
        b"containers: {app: {image: coredns, ports: ['53/udp']}}\n"
    )
    job = parse(text)
    assert (job.kind, job.network, job.instances) == (JobKind.SYSTEM, NetworkMode.HOST, 0)
    assert (job.priority, job.min_available) == (10_000, 1)
    assert [str(port) for port in Demand.of(job).host_ports] == ["53/udp"]
