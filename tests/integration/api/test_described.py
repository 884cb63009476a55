"""The API is what its description says: every route, every answer, every shape."""

import copy
import json
from typing import Any

from jsonschema import Draft202012Validator
from openapi_spec_validator import validate

from ozymandias.api.app import make_app
from ozymandias.api.audit import Audit
from ozymandias.api.callers import Door
from ozymandias.api.guards import Guard
from ozymandias.api.limits import Limits
from ozymandias.api.table import ROUTES, described
from tests.integration.api.rig import Answer, Cluster
from tests.integration.api.test_api import healthy, job_file

POOL = job_file("pool", autoscale={"min": 0, "max": 2, "pending": {"key": "/queue"}})
DESCRIPTION = json.loads(described())


def strict(schema: Any) -> Any:
    """The same schema, in which nothing else than what is named may be in an object."""
    schema = copy.deepcopy(schema)
    for name, part in schema["components"]["schemas"].items():
        if part.get("type") == "object" and name not in ("Problem", "JobFile"):
            part["additionalProperties"] = False
    return schema


STRICT = strict(DESCRIPTION)


def check(path: str, method: str, answer: Answer) -> None:
    """The answer is one that the description has, to the last member."""
    responses = DESCRIPTION["paths"][path][method.lower()]["responses"]
    response = responses[str(answer.status)]
    media = answer.headers["content-type"].partition(";")[0]
    schema = response["content"][media]["schema"]
    for header, shape in response.get("headers", {}).items():
        assert header.lower() in answer.headers or not shape.get("required"), header
    if media in ("application/json", "application/problem+json"):
        Draft202012Validator({**STRICT, **schema}).validate(answer.document)


def test_the_description_is_valid() -> None:
    """OpenAPI 3.1, by its own rules."""
    validate(DESCRIPTION)
    assert DESCRIPTION["openapi"].startswith("3.1")
    ids = [o["operationId"] for p in DESCRIPTION["paths"].values() for o in p.values()]
    assert len(ids) == len(set(ids))


def test_every_route_is_described_and_nothing_else(cluster: Cluster) -> None:
    """The application's router, the table and the document are the same set."""
    guard = Guard.of(Door(tokens=None), Limits(), frozenset(), Audit())
    app = make_app(cluster.machines["n1"].daemon.operations, guard)
    served = {(r.method, r.resource.canonical) for r in app.router.routes() if r.resource}
    told = {(m.upper(), p) for p, methods in DESCRIPTION["paths"].items() for m in methods}
    assert served == told == {route.key for route in ROUTES}


def test_real_answers_have_the_described_shape(cluster: Cluster) -> None:
    """Every route is asked so that it succeeds, and so that it fails; all members are named."""
    job, web = "/v1/jobs/{namespace}/{job}", "/v1/jobs/default/shape"
    instance, one = "/v1/instances/{namespace}/{instance}", "/v1/instances/default/shape-0"
    node = "/v1/nodes/{node}"
    ask = cluster.request
    made = ask("POST", "/v1/jobs", job_file("shape", numInstances=2))
    check("/v1/jobs", "POST", made)
    healthy(cluster, "shape", 2)
    big = job_file("big", container={"memory": "99G"})
    seen: set[tuple[str, str]] = {("POST", "/v1/jobs")}
    for method, path, url, body in (
        ("POST", "/v1/jobs", "/v1/jobs", job_file("shape", numInstances=2)),
        ("POST", "/v1/jobs", "/v1/jobs", big),
        ("POST", "/v1/jobs", "/v1/jobs", b"name: ["),
        ("POST", "/v1/plan", "/v1/plan", job_file("shape", numInstances=1)),
        ("POST", "/v1/plan", "/v1/plan", big),
        ("POST", "/v1/plan", "/v1/plan?lose_node=n2", job_file("shape", numInstances=1)),
        ("POST", "/v1/plan", "/v1/plan?lose_node=n9", job_file("shape", numInstances=1)),
        ("POST", "/v1/plan", "/v1/plan?lose_any=2", job_file("shape", numInstances=1)),
        ("GET", "/v1/status", "/v1/status", None),
        ("GET", "/v1/replay", "/v1/replay?environment=1", None),
        ("POST", "/v1/what-if", "/v1/what-if", {"steps": "lose n2; scale shape 99; add n4 4G"}),
        ("POST", "/v1/what-if", "/v1/what-if", {"steps": "lose n9"}),
        ("GET", "/v1/jobs", "/v1/jobs?limit=1", None),
        ("GET", job, web, None),
        ("GET", job, "/v1/jobs/default/none", None),
        ("POST", f"{job}/scale", f"{web}/scale", {"instances": 3}),
        ("POST", f"{job}/scale", f"{web}/scale", {"instances": "x"}),
        ("GET", f"{job}/versions", f"{web}/versions", None),
        ("GET", f"{job}/why", f"{web}/why", None),
        ("GET", f"{job}/why-not/{{node}}", f"{web}/why-not/n2", None),
        ("GET", f"{job}/why-not/{{node}}", f"{web}/why-not/n9", None),
        ("GET", "/v1/replay", "/v1/replay?decision=n9/1", None),
        ("GET", f"{job}/logs", f"{web}/logs?tail=1", None),
        ("GET", "/v1/instances", "/v1/instances", None),
        ("GET", f"{instance}/logs", f"{one}/logs", None),
        ("GET", f"{instance}/logs", "/v1/instances/default/none-0/logs", None),
        ("POST", f"{instance}/exec", f"{one}/exec", {"command": ["ls"]}),
        ("POST", f"{instance}/exec", f"{one}/exec", {"command": []}),
        ("GET", f"{instance}/why", f"{one}/why", None),
        ("GET", "/v1/nodes", "/v1/nodes", None),
        ("GET", node, "/v1/nodes/n3", None),
        ("GET", node, "/v1/nodes/none", None),
        ("GET", f"{node}/shed", "/v1/nodes/n3/shed", None),
        ("GET", f"{node}/shed", "/v1/nodes/none/shed", None),
        ("POST", f"{node}/cordon", "/v1/nodes/n3/cordon", None),
        ("POST", f"{node}/cordon", "/v1/nodes/none/cordon", None),
        ("POST", f"{node}/uncordon", "/v1/nodes/n3/uncordon", None),
        ("POST", f"{node}/labels", "/v1/nodes/n3/labels", {"set": {"a": "b"}, "remove": ["c"]}),
        ("POST", f"{node}/labels", "/v1/nodes/n3/labels", {"set": {"a": "x y"}}),
        ("POST", f"{node}/drain", "/v1/nodes/n3/drain", {"dry_run": True}),
        ("POST", f"{node}/drain", "/v1/nodes/n3/drain", {"deadline_seconds": 600}),
        ("POST", f"{node}/uncordon", "/v1/nodes/n3/uncordon", None),
        ("GET", "/v1/nodes", "/v1/nodes", None),
        ("POST", f"{node}/undrain", "/v1/nodes/n3/undrain", None),
        ("GET", "/v1/settings", "/v1/settings", None),
        ("PATCH", "/v1/settings", "/v1/settings", {"pools": {"dev": {"require": ["a exists"]}}}),
        ("PATCH", "/v1/settings", "/v1/settings", {"target_percent": 5}),
        ("PATCH", "/v1/settings", "/v1/settings", {"pools": {"dev": None}}),
        ("POST", "/v1/jobs", "/v1/jobs", POOL),
        ("GET", "/v1/pools", "/v1/pools", None),
        ("POST", f"{job}/scale", "/v1/jobs/default/pool/scale", {"instances": 1}),
        ("GET", "/v1/freezes", "/v1/freezes", None),
        ("PUT", "/v1/freezes/{freeze}", "/v1/freezes/a", {"from": "01:00", "to": "02:00"}),
        ("PUT", "/v1/freezes/{freeze}", "/v1/freezes/b", {"for_seconds": 60}),
        ("PUT", "/v1/freezes/{freeze}", "/v1/freezes/c", {"from": "01:00", "to": "01:00"}),
        ("GET", "/v1/freezes", "/v1/freezes", None),
        ("DELETE", "/v1/freezes/{freeze}", "/v1/freezes/a", None),
        ("DELETE", "/v1/freezes/{freeze}", "/v1/freezes/b", None),
        ("DELETE", "/v1/freezes/{freeze}", "/v1/freezes/b?reason=x", None),
        ("DELETE", "/v1/freezes/{freeze}", "/v1/freezes/b", None),
        ("GET", "/v1/drift", "/v1/drift", None),
        ("GET", "/v1/rebalance", "/v1/rebalance?max_moves=2", None),
        ("POST", "/v1/rebalance", "/v1/rebalance", {"max_moves": 2}),
        ("GET", "/v1/info", "/v1/info", None),
        ("GET", "/v1/events", "/v1/events", None),
        ("GET", "/v1/events", "/v1/events?limit=x", None),
        ("GET", "/metrics", "/metrics", None),
        ("GET", "/healthz", "/healthz", None),
        ("GET", "/readyz", "/readyz", None),
        ("GET", "/v1/openapi.json", "/v1/openapi.json", None),
        ("POST", f"{job}/restart", f"{web}/restart", None),
        ("DELETE", job, web, None),
        ("DELETE", job, "/v1/jobs/default/none", None),
    ):
        check(path, method, ask(method, url, body))
        seen.add((method, path))
    assert seen == {route.key for route in ROUTES}


def test_lines_of_logs_have_the_described_shape(cluster: Cluster) -> None:
    """Streams are described by their lines."""
    cluster.request("POST", "/v1/jobs", job_file("lines"))
    healthy(cluster, "lines", 1)
    (line,) = cluster.request("GET", "/v1/jobs/default/lines/logs").body.splitlines()
    shape = {"$ref": "#/components/schemas/LogLine"}
    Draft202012Validator({**STRICT, **shape}).validate(json.loads(line))
