"""What containers get: one network per pod, hard limits, few rights, their own words."""

import json
import socket
from contextlib import aclosing

import pytest

from ozymandias.model.job import Dependency, JobKind, PullPolicy, Tmpfs
from ozymandias.model.pod import ContainerState
from ozymandias.model.record import replace
from ozymandias.ports import ImageMissing
from tests.integration.podman.conftest import BUSYBOX, MEMORY_BYTES, PodmanKit, demo, shell
from tests.runtime_contract import make_pod, observed, state_of, until

SLEEP = "trap 'exit 0' TERM; while :; do sleep 1000 & wait; done"


async def run_and_read(kit: PodmanKit, container: object, name: str = "app") -> str:
    """Everything a short-lived container prints."""
    pod = make_pod(container)  # type: ignore[arg-type]
    await kit.runtime.create_pod(pod)
    await kit.runtime.start_container(pod.id, name)
    await until(kit.runtime, pod, lambda p: state_of(p, name) is ContainerState.EXITED)
    return "\n".join([line.text async for line in kit.runtime.logs(pod.id, name)])


async def test_containers_of_a_pod_share_one_network(kit: PodmanKit) -> None:
    """One container reaches the other on localhost, and the pod has one address."""
    fetch = "for i in $(seq 50); do wget -qO- localhost:8000 && exit; sleep 0.1; done; exit 1"
    pod = make_pod(demo("web", MESSAGE="hello"), shell(fetch, name="client"))
    await kit.runtime.create_pod(pod)
    await kit.runtime.start_container(pod.id, "web")
    await kit.runtime.start_container(pod.id, "client")
    done = await until(kit.runtime, pod, lambda p: state_of(p, "client") is ContainerState.EXITED)
    text = [line.text async for line in kit.runtime.logs(pod.id, "client")]
    assert text[0] == "hello" and f"node: {pod.id.node}" in text
    assert done.container("client").exit_code == 0  # type: ignore[union-attr]


async def test_memory_limit_kills_and_says_so(kit: PodmanKit) -> None:
    """A container beyond its memory limit ends with 137 and is known to have been out of memory."""
    greedy = demo(EAT_MEMORY="64M")
    pod = make_pod(greedy)
    await kit.runtime.create_pod(pod)
    await kit.runtime.start_container(pod.id, "app")
    found = await until(kit.runtime, pod, lambda p: state_of(p) is ContainerState.EXITED)
    assert (found.containers[0].exit_code, found.containers[0].oom_killed) == (137, True)


async def test_a_plain_kill_is_not_out_of_memory(kit: PodmanKit) -> None:
    """137 alone proves nothing: a container killed otherwise is not called out of memory."""
    pod = make_pod(shell(SLEEP))
    await kit.runtime.create_pod(pod)
    await kit.runtime.start_container(pod.id, "app")
    kit.site.service.podman("kill", "--signal=KILL", f"{pod.id.name}.app")
    found = await until(kit.runtime, pod, lambda p: state_of(p) is ContainerState.EXITED)
    assert (found.containers[0].exit_code, found.containers[0].oom_killed) == (137, False)


async def test_environment(kit: PodmanKit) -> None:
    """Containers get the pod's environment and their own; OZY_* can't be faked."""
    container = replace(
        shell("env"), environment=(("A", "x=y z"), ("OZY_JOB", "fake"), ("EMPTY", ""))
    )
    lines = (await run_and_read(kit, container)).splitlines()
    assert {"A=x=y z", "OZY_JOB=web", "OZY_NODE=n1", "EMPTY="} <= set(lines)


async def test_names_and_resolver(kit: PodmanKit) -> None:
    """The host name is the instance's, the resolver is ours with the namespace's search domain."""
    text = await run_and_read(kit, shell("hostname; cat /etc/resolv.conf /etc/hosts"))
    lines = text.splitlines()
    assert lines[0] == "web-0"
    assert "nameserver 192.0.2.53" in lines and "search default.ozy.internal" in lines
    assert text.count("nameserver") == 1


async def test_entrypoint_user_directory_and_file_systems(kit: PodmanKit) -> None:
    """entrypoint, user, working_dir, read_only and tmpfs are as the job file says."""
    script = (
        "id -u; pwd; touch /x 2>/dev/null || echo read-only;"
        "dd if=/dev/zero of=/scratch/f bs=1M count=2 2>&1 | grep -o 'No space left'"
    )
    container = replace(
        shell(""),
        entrypoint=("sh", "-c"),
        command=(script,),
        user="1000:1000",
        working_dir="/tmp",
        read_only=True,
        tmpfs=(Tmpfs(path="/scratch", space_bytes=2**20),),
    )
    lines = (await run_and_read(kit, container)).splitlines()
    assert lines == ["1000", "/tmp", "read-only", "No space left"]


async def test_rights_are_few(kit: PodmanKit) -> None:
    """No raw sockets, no new privileges, a limit on processes; init reaps when asked for."""
    script = (
        "grep -E 'CapEff|NoNewPrivs' /proc/self/status; cat /proc/1/comm; cd /sys/fs/cgroup;"
        "cat pids/pids.max 2>/dev/null || cat pids.max"
    )
    lines = (await run_and_read(kit, replace(shell(script), init=True))).splitlines()
    capabilities = int(lines[0].split()[1], 16)
    assert not capabilities >> 13 & 1  # CAP_NET_RAW
    assert not capabilities >> 21 & 1  # CAP_SYS_ADMIN
    assert lines[1].split()[1] == "1"
    assert lines[2] == "podman-init"
    assert lines[3] == "4096"


async def test_pods_are_killed_for_memory_before_anything_of_the_host(kit: PodmanKit) -> None:
    """Every process of a pod's containers has a score above 0; the less important, the higher.

    What holds its network, the infra container, has podman's own: a pod's specification has no
    score, and to kill the megabyte that it takes would help nobody.
    """
    scores = {}
    for name, change in {
        "low": {},
        "high": {"priority": 10_000},
        "system": {"kind": JobKind.SYSTEM, "instances": 0},
    }.items():
        made = make_pod(shell("sleep 0.01; cat /proc/self/oom_score_adj"), job=name)
        pod = replace(made, job=replace(made.job, **change))
        await kit.runtime.create_pod(pod)
        await kit.runtime.start_container(pod.id, "app")
        await until(kit.runtime, pod, lambda p: state_of(p, "app") is ContainerState.EXITED)
        (line,) = [line.text async for line in kit.runtime.logs(pod.id, "app")]
        scores[name] = int(line)
    assert scores == {"low": 900, "high": 500, "system": 200}


async def test_no_swap_beyond_the_memory_limit(kit: PodmanKit) -> None:
    """The limit counts memory and swap together."""
    script = (
        "cd /sys/fs/cgroup; if [ -d memory ]; then cd memory; echo old;"
        "cat memory.limit_in_bytes memory.memsw.limit_in_bytes;"
        "else echo new; cat memory.max memory.swap.max; fi"
    )
    kind, limit, swap = (await run_and_read(kit, shell(script))).split()
    assert limit == str(MEMORY_BYTES)
    assert swap == (limit if kind == "old" else "0")  # old cgroups count both in one number


async def test_stop_signal_is_the_containers_own(kit: PodmanKit) -> None:
    """A container that asks for SIGQUIT gets SIGQUIT, and its exit code is kept."""
    script = "trap 'exit 4' QUIT; echo ready; while :; do sleep 1000 & wait; done"
    pod = make_pod(replace(shell(script), stop_signal="SIGQUIT"))
    await kit.runtime.create_pod(pod)
    await kit.runtime.start_container(pod.id, "app")
    async with aclosing(kit.runtime.logs(pod.id, "app", follow=True)) as lines:
        assert (await anext(lines)).text == "ready"  # its trap is set
    await kit.runtime.stop_pod(pod.id)
    found = await observed(kit.runtime, pod)
    assert found is not None and found.containers[0].exit_code == 4


async def test_dependants_stop_first(kit: PodmanKit) -> None:
    """The web container has ended before the database gets its signal."""
    web = replace(shell(SLEEP, name="web"), depends_on=(Dependency(container="db"),))
    slow = replace(web, command=("sh", "-c", SLEEP.replace("exit 0", "sleep 0.5; exit 0")))
    pod = make_pod(slow, shell(SLEEP, name="db"))
    await kit.runtime.create_pod(pod)
    for name in ("db", "web"):
        await kit.runtime.start_container(pod.id, name)
    await kit.runtime.stop_pod(pod.id)
    found = await observed(kit.runtime, pod)
    assert found is not None
    assert found.container("web").finished_at < found.container("db").finished_at  # type: ignore[union-attr]


async def test_labels_say_whose_it_is(kit: PodmanKit) -> None:
    """Pod and containers carry cluster, node and instance; a job can't overwrite our labels."""
    labelled = replace(shell(SLEEP), labels=(("team", "blue"), ("ozymandias.cluster", "stolen")))
    pod = make_pod(labelled)
    await kit.runtime.create_pod(pod)
    text = kit.site.service.podman(
        "inspect", "--format", "{{json .Config.Labels}}", f"{pod.id.name}.app"
    )
    labels = json.loads(text)
    assert labels["team"] == "blue"
    assert labels["ozymandias.cluster"] == kit.site.cluster
    assert labels["ozymandias.slot"] == "0"


async def test_image_policy(kit: PodmanKit) -> None:
    """An image that is here is not pulled under missing and never."""
    await kit.runtime.ensure_image(BUSYBOX, PullPolicy.MISSING)
    await kit.runtime.ensure_image(BUSYBOX, PullPolicy.NEVER)


@pytest.mark.parametrize("policy", [PullPolicy.MISSING, PullPolicy.ALWAYS])
async def test_failed_pull_says_why(kit: PodmanKit, policy: PullPolicy) -> None:
    """An image whose registry does not answer is missing, and the reason is podman's own."""
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))  # bound and not listening: nobody else can answer there
        image = f"127.0.0.1:{closed.getsockname()[1]}/absent:1"
        with pytest.raises(ImageMissing, match=r"could not be pulled: .*connection refused"):
            await kit.runtime.ensure_image(image, policy)
