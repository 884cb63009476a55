"""What is asked of podman follows from the job alone."""

import pytest

from ozymandias.model.job import (
    Container,
    Dependency,
    Job,
    JobName,
    Namespace,
    NetworkMode,
    Port,
    Protocol,
    Tmpfs,
)
from ozymandias.model.node import NodeName
from ozymandias.model.pod import Pod, PodId
from ozymandias.model.record import replace
from ozymandias.ports import RuntimeFailed
from ozymandias.runtime import podspec
from ozymandias.runtime.podspec import Mount, Owner
from ozymandias.runtime.redirect import ruleset

OWNER = Owner(cluster="c1", node="n1")
ID = PodId(
    node=NodeName("n1"),
    namespace=Namespace("default"),
    job=JobName("web"),
    slot=3,
    uid="abcd1234",
    version=2,
    generation=1,
)
APP = Container(name="app", image="web:1")


def pod(*containers: Container) -> Pod:
    job = Job(name=ID.job, namespace=ID.namespace, containers=containers)
    return Pod(id=ID, job=job, environment=(("OZY_JOB", "web"), ("HOST_IP", "192.0.2.1")))


def spec(container: Container, *mounts: Mount) -> dict[str, object]:
    return podspec.container_spec(pod(container), container, OWNER, mounts)


def test_labels_tell_the_identity_back() -> None:
    """Labels written for a pod are read back as the same identity."""
    labels = podspec.labels_of(OWNER, ID)
    assert podspec.pod_id_of(labels) == ID
    assert labels["ozymandias.owner"] == "c1/n1"


@pytest.mark.parametrize("broken", [{}, {"ozymandias.slot": "three"}])
def test_broken_labels_are_nobodys(broken: dict[str, str]) -> None:
    """Labels that are missing or nonsense give no identity, and no exception."""
    labels = podspec.labels_of(OWNER, ID) | broken if broken else {}
    assert podspec.pod_id_of(labels) is None


def test_memory_is_hard_and_rights_are_few() -> None:
    """Memory and swap are one limit, podman restarts nothing, NET_RAW goes unless asked for."""
    made = spec(APP)
    assert made["resource_limits"]["memory"] == {  # type: ignore[index]
        "limit": APP.memory_bytes,
        "swap": APP.memory_bytes,
    }
    assert made["restart_policy"] == "no" and made["no_new_privileges"] is True
    assert made["cap_drop"] == ["NET_RAW"] and made["cap_add"] == []
    asked = spec(replace(APP, cap_add=("cap_net_raw",), cap_drop=("CHOWN", "NET_RAW")))
    assert asked["cap_add"] == ["NET_RAW"] and asked["cap_drop"] == ["CHOWN"]


def test_what_is_not_given_is_left_to_the_image() -> None:
    """Entry point, command, user, directory and signal appear only when the job names them."""
    assert spec(APP).keys().isdisjoint({"entrypoint", "command", "user", "work_dir", "stop_signal"})
    given = spec(replace(APP, command=(), stop_signal="quit", user="5", working_dir="/w"))
    assert (given["command"], given["stop_signal"]) == ([], 3)
    assert (given["user"], given["work_dir"]) == ("5", "/w")


def test_unknown_signal_is_a_failure() -> None:
    """A stop signal that does not exist is never ignored."""
    with pytest.raises(RuntimeFailed, match="SIGNOPE"):
        spec(replace(APP, stop_signal="SIGNOPE"))


def test_environment_of_the_container_wins_but_for_ours() -> None:
    """A container may override HOST_IP and not OZY_JOB."""
    container = replace(APP, environment=(("OZY_JOB", "x"), ("HOST_IP", "y"), ("A", "b")))
    assert podspec.environment_of(pod(container), container) == {
        "OZY_JOB": "web",
        "HOST_IP": "y",
        "A": "b",
    }


def test_mounts() -> None:
    """Named volumes, bound directories and tmpfs each arrive in podman's own form."""
    container = replace(APP, tmpfs=(Tmpfs(path="/t", space_bytes=4096),))
    made = spec(container, Mount(path="/v", volume="vol"), Mount(path="/d", directory="/base/d"))
    assert made["volumes"] == [{"Name": "vol", "Dest": "/v"}]
    bind, tmpfs = made["mounts"]  # type: ignore[misc]
    assert (bind["type"], bind["source"], bind["destination"]) == ("bind", "/base/d", "/d")  # type: ignore[has-type]
    assert "size=4096" in tmpfs["options"]  # type: ignore[has-type]


def test_depths_follow_dependencies() -> None:
    """Dependants are deeper than what they depend on, so that they stop first."""
    web = replace(APP, name="web", depends_on=(Dependency(container="api"),))
    api = replace(APP, name="api", depends_on=(Dependency(container="db"),))
    db = replace(APP, name="db")
    assert podspec.depths_of([web, db, api]) == {"web": 2, "api": 1, "db": 0}


def test_redirects_survive_their_label() -> None:
    """Only ports that differ are redirected; the label tells them back; nonsense is dropped."""
    ports = (
        Port(pod=80, container=3000),
        Port(pod=53, container=5353, protocol=Protocol.UDP),
        Port(pod=22, container=22),
    )
    wanted = podspec.redirects_of([replace(APP, ports=ports)])
    label = podspec.redirects_label(wanted)
    assert label == "80:3000/tcp,53:5353/udp"
    assert podspec.parse_redirects(label + ",x:y/tcp,1:2/sctp,") == wanted
    rules = ruleset(wanted)
    assert rules.count("tcp dport 80 redirect to :3000") == 2  # from outside, and from within
    assert rules.index("delete table") < rules.index("chain prerouting")


def test_host_ports_and_network_of_the_pod() -> None:
    """Host ports are the pod's mappings; the host name is the instance's."""
    container = replace(APP, ports=(Port(pod=80, container=3000, host=8080),))
    made = podspec.pod_spec(
        pod(container), OWNER, network="net", dns_server="10.0.0.1", dns_search="default.x"
    )
    assert made["portmappings"] == [{"host_port": 8080, "container_port": 3000, "protocol": "tcp"}]
    assert made["Networks"] == {"net": {}} and made["hostname"] == "web-3"
    long = ID._replace(job=JobName("x" * 63))
    assert len(podspec.host_name(long)) <= 63 and podspec.host_name(long).endswith("-3")


def test_a_pod_on_the_machines_own_network_maps_nothing() -> None:
    """No network, mappings, host name or resolver of its own; a label tells what it is."""
    made = pod(replace(APP, ports=(Port(pod=9100, container=9100),)))
    made = replace(made, job=replace(made.job, network=NetworkMode.HOST))
    found = podspec.pod_spec(made, OWNER, network="net", dns_server="10.0.0.1", dns_search="x")
    assert found["netns"] == {"nsmode": "host"}
    assert not {"Networks", "portmappings", "hostname", "dns_server"} & found.keys()
    assert found["labels"][podspec.NETWORK] == "host"
