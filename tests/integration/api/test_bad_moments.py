"""The store gone, nodes gone, many at once: the API says so and recovers."""

import json
from concurrent.futures import ThreadPoolExecutor
from http.client import HTTPConnection

from ozymandias.sim.host import Behaviour
from tests.integration.api.rig import LEASE_SECONDS, TOKEN, Cluster, until
from tests.integration.api.test_api import healthy, job_file, problem


def test_without_the_store_everything_is_503_with_retry_after(own_cluster: Cluster) -> None:
    """A daemon that lost its session says so, is alive but not ready, and comes back by itself."""
    cluster = own_cluster
    cluster.request("POST", "/v1/jobs", job_file("steady"))
    healthy(cluster, "steady", 1)
    for machine in cluster.machines.values():
        cluster.do(machine.store.partition)
    until(lambda: cluster.request("GET", "/v1/jobs").status == 503, 3 * LEASE_SECONDS)
    for method, path in (("GET", "/v1/jobs"), ("POST", "/v1/jobs"), ("GET", "/v1/info")):
        answer = cluster.request(method, path, b"{}" if method == "POST" else None)
        problem(answer, 503, "store-unavailable")
        assert int(answer.headers["retry-after"]) > 0
    assert cluster.request("GET", "/healthz", token="").status == 200
    assert cluster.request("GET", "/readyz", token="").status == 503
    ran = cluster.ozy("ps", "-o", "json")
    assert (ran.code, ran.err) == (6, "")
    assert ran.document["type"].endswith("#store-unavailable")
    for machine in cluster.machines.values():
        cluster.do(machine.store.heal)
    until(lambda: cluster.request("GET", "/v1/jobs").status == 200, 20)


def test_a_change_whose_outcome_is_unknown(own_cluster: Cluster) -> None:
    """When the store's answers are lost for good, the client is told to look, not of a failure."""
    cluster = own_cluster
    store = cluster.machines["n1"].store

    def lose_answers() -> None:
        store.faults.ambiguous = 1.0
        store.faults.timeout = 0.05

    cluster.do(lose_answers)
    answer = cluster.request("POST", "/v1/jobs", job_file("unsure"))
    document = problem(answer, 503, "outcome-unknown")
    assert "ozy status" in document["hint"]
    assert "retry-after" in answer.headers


def test_the_cli_goes_to_the_next_node(own_cluster: Cluster) -> None:
    """With the first node dead and the second cut off from the store, the third answers."""
    cluster = own_cluster
    cluster.kill("n1")
    cluster.do(cluster.machines["n2"].store.partition)
    until(lambda: cluster.request("GET", "/v1/nodes", node="n2").status == 503, 3 * LEASE_SECONDS)
    ran = cluster.ozy("version", "-o", "json")
    assert ran.document["node"] == "n3"
    cluster.kill("n2")
    cluster.kill("n3")
    ran = cluster.ozy("ps")
    assert (ran.code, ran.out) == (6, "")
    assert ran.err.count("connection refused") == 3


def test_a_lost_node_is_shown_as_such(own_cluster: Cluster) -> None:
    """Its instances are lost or moved, its logs say that the node does not answer."""
    cluster = own_cluster
    cluster.request("POST", "/v1/jobs", job_file("mover", numInstances=3), node="n2")
    rows = cluster.request("GET", "/v1/jobs/default/mover", node="n2").document["instances"]
    (gone,) = [row["instance"] for row in rows if row["node"] == "n1"]
    cluster.kill("n1")
    answer = cluster.request("GET", f"/v1/instances/default/{gone}/logs", node="n2")
    problem(answer, 502, "node-unreachable")
    until(
        lambda: (
            cluster.request("GET", "/v1/nodes", node="n2").document["items"][0]["state"] == "lost"
        ),
        3 * LEASE_SECONDS,
    )

    def moved() -> bool:
        found = cluster.request("GET", "/v1/jobs/default/mover", node="n2").document
        return bool(found["up_to_date"] == 3) and "n1" not in {
            row["node"] for row in found["instances"]
        }

    until(moved, 20)


def test_many_submits_at_once(own_cluster: Cluster) -> None:
    """Sixty jobs through three peers at once are all accepted, and each exists once."""
    cluster = own_cluster
    for machine in cluster.machines.values():
        machine.host.behave = lambda pod, container, start: Behaviour()

    def submit(number: int) -> int:
        port = cluster.machines[f"n{number % 3 + 1}"].port
        connection = HTTPConnection("127.0.0.1", port, timeout=60)
        body = job_file(f"many-{number}", container={"memory": "8M"})
        connection.request("POST", "/v1/jobs", body, {"Authorization": f"Bearer {TOKEN}"})
        status = connection.getresponse().status
        connection.close()
        return status

    with ThreadPoolExecutor(16) as pool:
        statuses = list(pool.map(submit, range(60)))
    assert set(statuses) == {201}
    names = {row["job"] for row in cluster.request("GET", "/v1/jobs").document["items"]}
    assert names == {f"many-{number}" for number in range(60)}


def test_a_bug_is_an_internal_problem_and_no_more(own_cluster: Cluster) -> None:
    """Something unforeseen in one request is a 500 problem; the next request is served."""
    cluster = own_cluster
    operations = cluster.machines["n1"].daemon.operations
    real = operations.nodes

    def broken() -> dict[str, object]:
        raise ZeroDivisionError("a secret detail")

    operations.nodes = broken  # type: ignore[method-assign]
    answer = cluster.request("GET", "/v1/nodes")
    document = problem(answer, 500, "internal")
    assert "secret" not in json.dumps(document)
    operations.nodes = real  # type: ignore[method-assign]
    assert cluster.request("GET", "/v1/nodes").status == 200
