"""What a token may do, over real HTTP: asked of a daemon that schedules, and of one that relays."""

import json
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from ozymandias.api.rights import NEEDS
from ozymandias.api.table import ROUTES
from ozymandias.store.tokens import Right, hashed, make_token
from tests.integration.api.rig import TOKEN, Cluster, until
from tests.integration.api.test_api import healthy, job_file, problem

DEPLOY = make_token()
ADMINISTRATORS = [
    *(("POST", f"/v1/nodes/n2/{verb}", b"") for verb in ("cordon", "uncordon", "undrain")),
    ("POST", "/v1/nodes/n2/drain", {}),
    ("POST", "/v1/nodes/n2/drain", {"dry_run": True}),
    ("POST", "/v1/nodes/n2/labels", {"set": {"role": "mine"}}),
    ("PATCH", "/v1/settings", {"target_percent": 60}),
    ("PATCH", "/v1/settings", {"rebalance": "on"}),
    ("PATCH", "/v1/settings", {"priority_classes": {"mine": 9999}}),
    ("PATCH", "/v1/settings", {"pools": {"dev": {"require": ["a exists"]}}}),
    ("PUT", "/v1/freezes/mine", {"from": "01:00", "to": "02:00"}),
    ("DELETE", "/v1/freezes/theirs", None),
    ("POST", "/v1/rebalance", {"max_moves": 1}),
]
EXEC = {"command": ["true"], "container": "app", "timeout_seconds": 5}
NODES = ["n1", "n3"]  # one that schedules, and one that passes its callers on


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """With a protected job and a freeze window, both an administrator's, and a deploy token."""
    with Cluster(tmp_path_factory.mktemp("rights"), schedulers=2) as found:
        give(found, Right.DEPLOY)
        guarded = job_file("guarded", numInstances=3, protected=True, placement=ONE_EACH)
        assert found.request("POST", "/v1/jobs", guarded).status == 201
        healthy(found, "guarded", 3)
        window = {"from": "03:00", "to": "03:01"}
        assert found.request("PUT", "/v1/freezes/theirs", window).status == 200
        yield found


ONE_EACH = {"max_per_node": 1}


def give(cluster: Cluster, right: Right) -> None:
    """The second token of the file has this right from now on."""
    cluster.tokens_file.write_text(f"{hashed(TOKEN)}\n{hashed(DEPLOY, right)}\n")


def state(cluster: Cluster) -> Any:
    """All that administrators settle."""
    nodes = [
        (row["name"], row["state"], row["labels"])
        for row in cluster.request("GET", "/v1/nodes").document["items"]
    ]
    paths = ("/v1/settings", "/v1/freezes")
    return nodes, *(cluster.request("GET", path).document for path in paths)


def by_socket(cluster: Cluster, method: str, path: str, body: bytes) -> int:
    with socket.socket(socket.AF_UNIX) as sock:
        sock.settimeout(10)
        sock.connect(str(cluster.socket))
        head = f"{method} {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n"
        sock.sendall(f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body)
        return int(sock.recv(65536).split(b" ")[1])


def test_every_change_that_is_an_administrators_is_tried() -> None:
    """The list above has each of the table's."""
    tried = {(method, path.replace("n2", "{node}")) for method, path, _ in ADMINISTRATORS}
    wanted = {r.key for r in ROUTES if r.change and NEEDS[r.change] is Right.ADMIN}
    named = {(m, p.replace("mine", "{freeze}").replace("theirs", "{freeze}")) for m, p in tried}
    assert named == wanted


@pytest.mark.parametrize("node", NODES)
@pytest.mark.parametrize(("method", "path", "body"), ADMINISTRATORS)
def test_what_is_an_administrators(
    cluster: Cluster, node: str, method: str, path: str, body: Any
) -> None:
    """Refused with a clear problem, and nothing has changed."""
    before = state(cluster)
    document = problem(
        cluster.request(method, path, body, node=node, token=DEPLOY), 403, "forbidden"
    )
    assert (document["right"], document["needed"]) == ("deploy", "admin")
    assert state(cluster) == before


def test_administrators_may_do_all_of_it(tmp_path: Path) -> None:
    """With their token at both daemons, and root on the socket."""
    with Cluster(tmp_path, schedulers=2) as cluster:
        for method, path, body in ADMINISTRATORS:
            for node in NODES:
                found = cluster.request(method, path, body, node=node)
                assert found.status in (200, 404), found.body  # a window is removed once
            data = body if isinstance(body, bytes) else json.dumps(body or {}).encode()
            assert by_socket(cluster, method, path, data) in (200, 404)
        protected = job_file("safe", protected=True)
        assert cluster.request("POST", "/v1/jobs", protected, node="n3").status == 201
        assert by_socket(cluster, "POST", "/v1/jobs", protected) == 200
        assert by_socket(cluster, "DELETE", "/v1/jobs/default/safe", b"") == 200


@pytest.mark.parametrize("node", NODES)
def test_who_deploys(cluster: Cluster, node: str) -> None:
    """Plans, submits, changes, scales, restarts, looks into and stops jobs of every day."""
    path, named = f"/v1/jobs/default/app-{node}", f"app-{node}"

    def ask(method: str, path: str, body: Any = None) -> int:
        return cluster.request(method, path, body, node=node, token=DEPLOY).status

    assert ask("POST", "/v1/plan", job_file(named)) == 200
    assert ask("POST", "/v1/jobs", job_file(named)) == 201
    healthy(cluster, named, 1)
    assert ask("POST", f"/v1/instances/default/{named}-0/exec", EXEC) == 200
    assert ask("POST", "/v1/jobs", job_file(named, priority=5)) == 200
    assert ask("POST", f"{path}/scale", {"instances": 2}) == 200
    assert ask("POST", f"{path}/restart", b"") == 200
    assert ask("DELETE", path) == 200
    until(lambda: ask("GET", path) == 404)


@pytest.mark.parametrize("node", NODES)
def test_who_deploys_reads_everything(cluster: Cluster, node: str) -> None:
    """Of protected jobs, too."""
    for path in (
        *("/v1/jobs", "/v1/nodes", "/v1/settings", "/v1/freezes", "/v1/status", "/v1/events"),
        *("/v1/drift", "/v1/rebalance", "/v1/info", "/v1/nodes/n2/shed"),
        *(f"/v1/jobs/default/guarded{part}" for part in ("", "/versions", "/why", "/logs")),
    ):
        assert cluster.request("GET", path, node=node, token=DEPLOY).status == 200, path
    what_if = {"steps": "lose n2; scale guarded 2"}
    answer = cluster.request("POST", "/v1/what-if", what_if, node=node, token=DEPLOY)
    assert answer.status == 200


@pytest.mark.parametrize("node", NODES)
def test_a_protected_job_is_an_administrators_to_make(cluster: Cluster, node: str) -> None:
    """Submit and plan say the same; the job is not made, nor is one that is there changed."""
    for name, status in (("wanted", 404), ("plain", 200)):
        if status == 200:
            assert cluster.request("POST", "/v1/jobs", job_file(name)).status in (200, 201)
        told = []
        for path in ("/v1/jobs", "/v1/plan"):
            given = job_file(name, protected=True)
            answer = cluster.request("POST", path, given, node=node, token=DEPLOY)
            told.append(problem(answer, 403, "forbidden"))
        assert told[0]["job"] == name and "is to be protected" in told[0]["detail"]
        assert [t | {"instance": ""} for t in told] == [told[0] | {"instance": ""}] * 2
        found = cluster.request("GET", f"/v1/jobs/default/{name}")
        assert found.status == status
        assert status == 404 or found.document["version"] == 1


@pytest.mark.parametrize("node", NODES)
def test_a_protected_job_is_left_alone(cluster: Cluster, node: str) -> None:
    """Who deploys does not take the protection away, nor change, scale, restart, enter or stop."""
    path, before = "/v1/jobs/default/guarded", cluster.request("GET", "/v1/jobs/default/guarded")
    for method, place, body in (
        ("POST", "/v1/jobs", job_file("guarded", numInstances=3, placement=ONE_EACH)),
        ("POST", "/v1/jobs", job_file("guarded", numInstances=2, protected=True)),
        ("POST", "/v1/plan", job_file("guarded", numInstances=2)),
        ("POST", f"{path}/scale", {"instances": 1}),
        ("POST", f"{path}/restart", b""),
        *(("POST", f"/v1/instances/default/guarded-{slot}/exec", EXEC) for slot in range(3)),
        ("DELETE", path, None),
    ):
        keys: dict[str, str] = {"Idempotency-Key": "again"}
        for headers in ({}, keys):
            answer = cluster.request(method, place, body, node=node, token=DEPLOY, headers=headers)
            assert problem(answer, 403, "forbidden")["operation"] == "job.protected"
    after = cluster.request("GET", path)
    assert after.document["etag"] == before.document["etag"]


def test_an_administrator_takes_the_protection_away(cluster: Cluster) -> None:
    """From then on it is a job like any other."""
    path = "/v1/jobs/default/released"
    for is_protected, status in ((True, 403), (False, 200)):
        given = job_file("released", protected=is_protected)
        assert cluster.request("POST", "/v1/jobs", given, node="n3").status in (200, 201)
        scaled = cluster.request("POST", f"{path}/scale", {"instances": 1}, token=DEPLOY)
        assert scaled.status == status
    assert cluster.request("DELETE", path, token=DEPLOY, node="n3").status == 200


@pytest.mark.parametrize("node", NODES)
def test_a_freeze_is_an_administrators_to_override(cluster: Cluster, node: str) -> None:
    """With whatever reason; without one the change is taken and waits, as for everybody."""
    assert cluster.request("POST", "/v1/jobs", job_file("frozen")).status in (200, 201)
    healthy(cluster, "frozen", 1)
    for path, body in (("/v1/jobs", job_file("frozen")), ("/v1/jobs/default/frozen/restart", b"")):
        urgent = f"{path}?override_freeze=urgent"
        answer = cluster.request("POST", urgent, body, node=node, token=DEPLOY)
        assert problem(answer, 403, "forbidden")["operation"] == "freeze.override"
        assert cluster.request("POST", path, body, node=node, token=DEPLOY).status == 200
        assert cluster.request("POST", urgent, body, node=node).status == 200


@pytest.mark.parametrize("node", NODES)
@pytest.mark.parametrize(
    "headers",
    [
        {"Ozymandias-Right": "admin"},
        {"ozymandias-right": "admin"},
        {"OZYMANDIAS-RIGHT": "admin", "Ozymandias-Passed-On": "1"},
        {"Ozymandias-Passed-On": "1"},
    ],
)
def test_nobody_gives_oneself_a_right(cluster: Cluster, node: str, headers: dict[str, str]) -> None:
    """What peers say of their callers is believed of peers alone, and of them only their own."""
    before = state(cluster)
    for method, path, body in (
        ("POST", "/v1/jobs", job_file("mine", protected=True)),
        ("POST", "/v1/jobs/default/guarded/scale", {"instances": 1}),
        ("DELETE", "/v1/jobs/default/guarded", None),
        ("POST", "/v1/nodes/n2/cordon", b""),
    ):
        answer = cluster.request(method, path, body, node=node, token=DEPLOY, headers=headers)
        problem(answer, 403, "forbidden")
    assert state(cluster) == before


def test_who_claims_to_be_a_peer_is_passed_on_as_well(cluster: Cluster) -> None:
    """A daemon that sees its own part alone would know nothing of a protected job elsewhere."""
    there = {"require": ["zone == z1"]}
    guarded = job_file("elsewhere", protected=True, placement=there)
    assert cluster.request("POST", "/v1/jobs", guarded).status == 201
    claim = {"Ozymandias-Passed-On": "1"}
    for method, path, body in (
        ("POST", "/v1/jobs", job_file("elsewhere", placement=there)),
        ("DELETE", "/v1/jobs/default/elsewhere", None),
    ):
        answer = cluster.request(method, path, body, node="n3", token=DEPLOY, headers=claim)
        problem(answer, 403, "forbidden")
    assert len(cluster.request("GET", "/v1/nodes", node="n3", headers=claim).document["items"]) == 3


@pytest.mark.parametrize(
    ("said", "status"), [("admin", 200), ("deploy", 403), ("none", 403), ("", 403), (None, 200)]
)
@pytest.mark.parametrize("path", ["/v1/jobs/default/guarded/scale", "/v1/nodes/n2/uncordon"])
def test_a_peer_acts_for_whom_it_passes_on(
    cluster: Cluster, path: str, said: str | None, status: int
) -> None:
    """With the right that it says; it says none when it asks for itself. Unknown ones are none."""
    headers = {"Authorization": "Peer n3:key-of-n3"}
    headers |= {} if said is None else {"Ozymandias-Right": said}
    body = {"instances": 3} if path.endswith("scale") else b""
    answer = cluster.request("POST", path, body, token="", headers=headers)
    assert answer.status == status, answer.body


@pytest.mark.parametrize("node", NODES)
def test_a_refusal_is_a_line_of_the_audit(cluster: Cluster, node: str) -> None:
    """One, where it came in, with whose token it was."""
    for path in ("/v1/nodes/n2/cordon", "/v1/jobs/default/guarded/restart"):
        count = len(cluster.audit_file.read_text().splitlines())
        cluster.request("POST", path, b"", node=node, token=DEPLOY)
        (line,) = map(json.loads, cluster.audit_file.read_text().splitlines()[count:])
        assert (line["node"], line["outcome"]) == (node, "forbidden")
        assert line["who"] == f"token:{hashed(DEPLOY).id}"


def test_a_right_that_is_changed_holds_at_once(cluster: Cluster) -> None:
    """The file is read again when it changes."""
    path = "/v1/nodes/n2/uncordon"
    for right, status in ((Right.ADMIN, 200), (Right.DEPLOY, 403)):
        give(cluster, right)
        for node in NODES:
            assert cluster.request("POST", path, b"", node=node, token=DEPLOY).status == status


@pytest.mark.parametrize("node", NODES)
def test_everybody_learns_the_right_of_ones_token(cluster: Cluster, node: str) -> None:
    """From the daemon that is asked."""
    for token, right in ((TOKEN, "admin"), (DEPLOY, "deploy")):
        found = cluster.request("GET", "/v1/info", node=node, token=token).document
        assert (found["node"], found["right"]) == (node, right)


@pytest.mark.parametrize("node", NODES)
def test_advice_is_what_the_token_may_do(cluster: Cluster, node: str) -> None:
    """Nodes are opened and labelled by administrators: so it is said to who deploys."""
    placed = {"require": ["role == mine"]}
    given = job_file("picky", placement=placed)
    for token, start in ((TOKEN, "label "), (DEPLOY, "have an administrator label ")):
        refused = cluster.request("POST", "/v1/jobs", given, node=node, token=token).document
        plan = cluster.request("POST", "/v1/plan", given, node=node, token=token).document
        for problem_ in (refused, plan["problem"]):
            (text,) = [s["text"] for s in problem_["suggestions"] if "label" in s["change"]]
            assert text.startswith(start) and text in problem_["hint"]
    steps = {"steps": "scale guarded 9"}
    for token, is_own in ((TOKEN, True), (DEPLOY, False)):
        answer = cluster.request("POST", "/v1/what-if", steps, node=node, token=token).document
        texts = [s["text"] for s in answer["steps"][0]["problem"]["suggestions"]]
        (more,) = [text for text in texts if "add " in text]
        assert more.startswith("add ") is is_own, texts


@pytest.mark.parametrize("node", NODES)
def test_why_not_advises_what_the_token_may_do(cluster: Cluster, node: str) -> None:
    """A node is opened by administrators."""
    assert cluster.request("POST", "/v1/nodes/n2/cordon", b"").status == 200
    try:
        for token, words in (
            (TOKEN, "uncordon n2"),
            (DEPLOY, "have an administrator uncordon n2"),
        ):
            path = "/v1/jobs/default/plain/why-not/n2"
            assert cluster.request("POST", "/v1/jobs", job_file("plain")).status in (200, 201)
            found = cluster.request("GET", path, node=node, token=token).document
            assert words in [s["text"] for s in found["suggestions"]]
    finally:
        assert cluster.request("POST", "/v1/nodes/n2/uncordon", b"").status == 200


def test_a_freeze_leaves_to_each_what_the_token_may_do(cluster: Cluster) -> None:
    """Plan, submit and restart name the option to administrators alone as theirs."""
    contexts = json.loads(cluster.context_file.read_text())
    contexts["contexts"]["ci"] = contexts["contexts"]["local"] | {"token": DEPLOY}
    cluster.context_file.write_text(json.dumps(contexts))
    assert cluster.request("POST", "/v1/jobs", job_file("cold")).status == 201
    healthy(cluster, "cold", 1)
    assert cluster.ozy("freeze", "now", "--for", "2h", "--reason", "a demo").code == 0
    try:
        file = cluster.folder / "cold.yaml"
        file.write_bytes(job_file("cold", priority=7))
        for arguments in (("plan", str(file)), ("submit", str(file)), ("restart", "cold")):
            command = arguments[0].replace("plan", "submit")
            option = f"`ozy {command}` with --override-freeze REASON."
            mine = cluster.ozy(*arguments).out
            theirs = cluster.ozy(*arguments, "--context", "ci").out
            assert f"To have it at once: {option}" in mine, mine
            for words in ("frozen by now until ", "(a demo)", "It goes on when that ends;"):
                assert words in theirs, theirs
            assert f"an administrator may have it at once: {option}" in theirs
            assert "To have it" not in theirs
    finally:
        assert cluster.ozy("freeze", "remove", "now", "--reason", "over").code == 0


def test_an_override_without_a_reason_is_refused_to_who_may_not(cluster: Cluster) -> None:
    """It is not told to say why: whatever it said would be refused."""
    path = "/v1/jobs?override_freeze="
    assert cluster.request("POST", path, job_file("why")).status == 400
    answer = cluster.request("POST", path, job_file("why"), token=DEPLOY)
    assert problem(answer, 403, "forbidden")["operation"] == "freeze.override"


@pytest.mark.parametrize("command", ["plan", "submit"])
def test_ozy_tells_people_and_scripts(cluster: Cluster, command: str) -> None:
    """What may not be done, what it takes, and exit code 1."""
    contexts = json.loads(cluster.context_file.read_text())
    contexts["contexts"]["ci"] = contexts["contexts"]["local"] | {"token": DEPLOY}
    cluster.context_file.write_text(json.dumps(contexts))
    file = cluster.job("wished", protected=True)
    ran = cluster.ozy(command, file, "--context", "ci")
    assert ran.code == 1
    assert "The token may not do this" in ran.err and "Take `protected` out" in ran.err
    shown = cluster.ozy(command, file, "--context", "ci", "-o", "json")
    assert shown.code == 1 and shown.document["needed"] == "admin"
