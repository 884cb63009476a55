"""From a job file to a running, named, routed pod: what only a running cluster can show."""

import re
from typing import Any

from tests.cluster.kit import BUSYBOX, Cluster, podman, shell, until, web

FETCH = "timeout 5 wget -q -O - http://{}/"  # busybox's own -T is broken in Debian's


def test_pods_reach_each_other_by_name(cluster: Cluster) -> None:
    """The job's name alone, in full, and one slot's; port 80 leads to 8000 of the container."""
    cluster.submit(web("simple-webapp", instances=2))
    cluster.submit(shell("asking", "sleep 1000"))
    for name in (
        "simple-webapp",
        "simple-webapp.default.ozy.internal",
        "1.simple-webapp.default.ozy.internal",
    ):
        code, output = cluster.run("asking-0", "sh", "-c", FETCH.format(name))
        assert code == 0, (name, output)
        assert "Look on my Works" in output
    assert "instance: simple-webapp-1\n" in output
    addresses = sorted(row["address"] for row in cluster.rows("simple-webapp"))
    assert cluster.resolve("simple-webapp.default.ozy.internal") == addresses
    services = cluster.resolve("_80._tcp.simple-webapp.default.ozy.internal", "SRV")
    assert len(services) == 2
    assert {line.split()[2] for line in services} == {"80"}


def test_a_name_outside_fails_politely(cluster: Cluster) -> None:
    """An unknown name of ours is no such name at once; a foreign one is answered, not ignored."""
    cluster.submit(shell("asking", "sleep 1000"))
    code, output = cluster.run(
        "asking-0", "timeout", "4", "nslookup", "nobody.default.ozy.internal"
    )
    assert code == 1, output
    assert "NXDOMAIN" in output
    code, output = cluster.run("asking-0", "timeout", "15", "nslookup", "host.invalid")
    assert code in (0, 1), output  # 143 would be the timeout: nobody answered


def test_containers_of_a_pod_share_their_network_and_start_in_order(cluster: Cluster) -> None:
    """`condition: healthy` holds the second back until the first is; they meet on localhost."""
    check = {"type": "http", "port": 8000, "interval": 0.5, "start_period": 10}
    job = web("pair", environment={"START_DELAY": "2"}, healthcheck=check)
    job["containers"]["later"] = {
        "image": BUSYBOX,
        "pull_policy": "never",
        "memory": "16M",
        "depends_on": {"web": {"condition": "healthy"}},
        # Fails for good if it were started before the other one answers.
        "command": ["sh", "-c", f"{FETCH.format('localhost:8000')} && sleep 1000 || exit 9"],
        "restart": "no",
        "stop_grace_period": 0,
    }
    cluster.submit(job)
    assert cluster.row("pair-0")["restarts"] == 0
    assert "Look on my Works" in cluster.log("pair-0")


def test_environment_in_all_forms(cluster: Cluster) -> None:
    """Mapping, `K=V`, name and value; and what every container is told about itself."""
    forms: dict[str, Any] = {
        "mapping": {"A": "1", "B": "two words"},
        "texts": ["A=1", "B=two words"],
        "pairs": [{"name": "A", "value": "1"}, {"name": "B", "value": "two words"}],
    }
    for name, environment in forms.items():
        cluster.submit(shell(name, "sleep 1000", environment=environment), wait=False)
    for name in forms:
        cluster.wait_healthy(name)
        _, output = cluster.run(f"{name}-0", "env")
        found = dict(line.split("=", 1) for line in output.splitlines())
        assert (found["A"], found["B"]) == ("1", "two words")
        assert found["OZY_JOB"] == name
        assert found["OZY_NAMESPACE"] == "default"
        assert found["OZY_INSTANCE"] == f"{name}-0"
        assert found["OZY_NODE"] == cluster.row(f"{name}-0")["node"]
        assert found["OZY_VERSION"] == "1"
        assert found["OZY_API"].startswith("http://")
        assert found["HOST_IP"]


def test_volumes(cluster: Cluster) -> None:
    """`space` is a limit, `shared` is seen by all instances, `keep` outlives its instance."""
    job = shell("store", "sleep 1000", numInstances=2)
    job["containers"]["main"]["volumes"] = [
        {"type": "local", "path": "/scratch", "space": "8M"},
        {"type": "local", "path": "/kept", "space": "4M", "keep": True},
        {"type": "shared", "path": "/shared", "space": "8M"},
    ]
    cluster.submit(job)
    code, output = cluster.run(
        "store-0", "dd", "if=/dev/zero", "of=/scratch/x", "bs=1M", "count=20"
    )
    assert code == 1
    assert "No space left" in output
    assert cluster.run("store-1", "sh", "-c", "echo hurt > /scratch/y")[0] == 0
    assert (
        cluster.run("store-0", "sh", "-c", "echo hi > /shared/file; echo me > /kept/file")[0] == 0
    )
    assert cluster.run("store-1", "cat", "/shared/file") == (0, "hi\n")
    before = cluster.row("store-0")["node"]
    directory = cluster.state_dir / "nodes" / before / "volumes"
    assert any("scratch" in str(path) for path in directory.rglob("*"))

    cluster.stop("store")
    left = [str(path) for path in directory.rglob("*")]
    assert not any("scratch" in path for path in left)
    assert any("kept" in path for path in left)
    assert not _mounted(str(cluster.state_dir))

    cluster.submit(job)
    if cluster.row("store-0")["node"] == before:  # the same job is placed alike
        assert cluster.run("store-0", "cat", "/kept/file") == (0, "me\n")


def _mounted(directory: str) -> list[str]:
    with open("/proc/self/mountinfo") as file:
        return [line for line in file if f" {directory}/" in line]


def test_hosts_of_the_ingress(cluster: Cluster) -> None:
    """Default hosts by namespace, own hosts and paths in their place, none with an empty list."""
    cluster.submit(web("plain"), wait=False)
    cluster.submit(web("team", namespace="blue"), wait=False)
    cluster.submit(web("hidden", ingress=[]), wait=False)
    own = [{"host": "shop.example"}, {"host": "www.example", "path": "/shop"}]
    cluster.submit(web("own", ingress=own))
    for name in ("plain", "hidden"):
        cluster.wait_healthy(name)
    cluster.wait_healthy("team", namespace="blue")
    try:
        for host, instance in (
            ("plain.localhost", "plain-0"),
            ("plain.default.localhost", "plain-0"),
            ("PLAIN.localhost:8080", "plain-0"),
            ("team.blue.localhost", "team-0"),
            ("shop.example", "own-0"),
        ):
            until(lambda host=host: cluster.fetch(host).status == 200)
            assert f"instance: {instance}\n".encode() in cluster.fetch(host).body
        for host in ("team.localhost", "hidden.localhost", "own.localhost", "www.example"):
            assert cluster.fetch(host).slug == "unknown-host"
        assert cluster.fetch("www.example", "/shop").status == 404  # the demo's own 404
        assert cluster.fetch("www.example", "/shop").headers["content-type"] == "text/html"
        taken = cluster.request(
            "POST", "/v1/jobs", web("thief", ingress=[{"host": "shop.example"}])
        )
        assert taken.slug == "ingress-taken"
        assert taken.document["owner"]
    finally:
        cluster.request("DELETE", "/v1/jobs/blue/team")
        until(lambda: cluster.request("GET", "/v1/jobs/blue/team").status == 404)


def test_unhealthy_instances_have_neither_name_nor_route(cluster: Cluster) -> None:
    """Both go with the health check, long before the restart that follows by policy."""
    check = {"type": "http", "port": 8000, "path": "/healthz", "interval": 0.3}
    job = web("ill", instances=2, healthcheck=check | {"unhealthy_threshold": 1}, restart="no")
    cluster.submit(job)
    name, victim = "ill.default.ozy.internal", cluster.row("ill-0")["address"]
    assert victim in cluster.resolve(name)
    cluster.run("ill-0", "ozy-demo", "unhealthy")
    taken = until(lambda: victim not in cluster.resolve(name))
    print(f"unhealthy -> name gone in {taken:.2f} s (interval 0.3 s)")
    assert len(cluster.resolve(name)) == 1
    for _ in range(10):
        assert b"instance: ill-1\n" in cluster.fetch("ill.localhost").body


def test_a_rejection_tells_numbers_and_what_would_fit(cluster: Cluster) -> None:
    """Per node what is free and short; the suggestion, followed, fits."""
    job = web("large", instances=8, memory="512M")
    text = cluster.text("submit", cluster.file(job), code=3)
    assert "Insufficient memory for job" in text
    assert "Job requires 4G of memory but only 3G can be allocated." in text
    for node in ("n1", "n2", "n3"):
        assert re.search(rf"{node}\b.*", text), text
    problem = cluster.ozy("submit", cluster.file(job), code=3)
    assert problem["type"].endswith("#insufficient-memory")
    assert {row["node"] for row in problem["nodes"]} == {"n1", "n2", "n3"}
    changes = [suggestion["change"] for suggestion in problem["suggestions"]]
    assert {"numInstances": 6} in changes
    assert any("containers.web.memory" in change for change in changes)
    for change in changes:
        if "nodes" not in change:  # the others are changes of the job file
            plan = cluster.request("POST", "/v1/plan", _changed(job, change))
            assert plan.document["fits"], (change, plan.document)

    disk = shell("disk", "sleep 1", volumes=[{"path": "/data", "space": "2G"}])
    assert cluster.request("POST", "/v1/jobs", disk).slug == "insufficient-disk"
    assert cluster.request("GET", "/v1/jobs/default/large").status == 404


def _changed(job: dict[str, Any], change: dict[str, Any]) -> dict[str, Any]:
    """The job file with a suggestion followed."""
    changed = dict(job)
    for path, value in change.items():
        target: Any = changed
        *parents, last = path.split(".")
        for part in parents:
            target[part] = dict(target[part])
            target = target[part]
        target[last] = value
    return changed


def test_plan_is_what_submit_does(cluster: Cluster) -> None:
    """The nodes named by `ozy plan` are those where the instances are."""
    job = web("planned", instances=3)
    plan = cluster.ozy("plan", cluster.file(job))
    cluster.submit(job)
    assert {row["instance"]: row["node"] for row in plan["place"]} == {
        row["instance"]: row["node"] for row in cluster.rows("planned")
    }
    assert all(row["reason"] for row in plan["place"])


def test_stop_removes_everything_but_history(cluster: Cluster) -> None:
    """Job, pods, volumes, names and routes go; the versions are still told, and go on counting."""
    job = web("gone", instances=2, volumes=[{"path": "/data", "space": "2M"}])
    cluster.submit(job)
    assert len(cluster.resolve("gone.default.ozy.internal")) == 2
    cluster.text("stop", "gone")
    assert cluster.request("GET", "/v1/jobs/default/gone").status == 404
    assert cluster.resolve("gone.default.ozy.internal") == []
    assert cluster.fetch("gone.localhost").slug == "unknown-host"
    assert podman("ps", "-aq", f"--filter=label=ozymandias.cluster={cluster.local.id}") == []
    assert not _mounted(str(cluster.state_dir))
    versions = cluster.get("/v1/jobs/default/gone/versions")["items"]
    assert [row["version"] for row in versions] == [1]
    assert {event["kind"] for event in cluster.events("gone")} >= {"job.submitted"}
    assert cluster.submit(job, wait=False)["version"] == 2
