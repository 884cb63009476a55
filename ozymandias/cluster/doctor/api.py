"""A cluster by its API: every endpoint of the context, its clock, then nodes and instances."""

import time
from collections.abc import Iterator
from typing import Any

from ozymandias.cluster import reach
from ozymandias.cluster.doctor import etcd
from ozymandias.cluster.doctor.check import Check, Patient, fail, ok, warn
from ozymandias.cluster.doctor.etcd import schedulers
from ozymandias.store.keys import job_key

IMAGE_MISSING = "image missing"  # how an instance's reason begins
TROUBLED = {"failed", "backoff", "unhealthy"}
ROWS_SHOWN_MAX = 10


def examine(patient: Patient) -> Iterator[Check]:
    if not patient.endpoints:
        yield warn(
            "context",
            "no cluster is chosen",
            "`ozy up` makes one on this machine; `ozy context` chooses another.",
        )
        return
    yield ok("context", ", ".join(patient.endpoints))
    good: list[str] = []
    for endpoint in patient.endpoints:
        checks, answers = _endpoint(endpoint, patient.token)
        yield from checks
        good += [endpoint] if answers else []
    if not good:
        return
    nodes = _items(good[0], "/v1/nodes", patient.token)
    yield from _nodes(nodes)
    alive = (row for row in nodes if row["state"] != "lost")
    yield from schedulers({str(row["name"]): bool(row.get("schedules", True)) for row in alive})
    yield from _instances(_items(good[0], "/v1/instances", patient.token))


def _endpoint(endpoint: str, token: str) -> tuple[list[Check], bool]:
    """Its checks, and whether it answers as it should."""
    name = f"API {endpoint}"
    try:
        answer = reach.get(f"{endpoint}/v1/nodes", token)
    except OSError as error:
        remedy = (
            "Another endpoint is used where there is one; on that host, `systemctl status"
            " ozymandias`. `ozy context` shows and changes the endpoints."
        )
        return [fail(name, f"no answer: {error}", remedy)], False
    clock = list(etcd.clock(f"clock of {endpoint}", answer.date, time.time()))
    problem = _document(answer)
    if answer.status == 200 and "items" in problem:
        return [ok(name, "answers"), *clock], True
    detail = f"HTTP {answer.status} {problem.get('detail', '')}".strip()
    remedy = str(problem.get("hint", ""))
    if answer.status == 401:
        detail = f"the token is missing or wrong ({detail})"
        remedy = (
            "Use the cluster's own (on a node: [api] token_file), in $OZY_TOKEN or the context;"
            " `ozy up` writes it anew for a cluster on this machine."
        )
    elif "detail" not in problem:
        detail = f"{detail}: that is not an Ozymandias API"
        remedy = "`ozy context` shows and changes the endpoints."
    return [fail(name, detail, remedy or "`ozy events` says what happened."), *clock], False


def _document(answer: reach.Answer) -> dict[str, Any]:
    try:
        found = answer.json()
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}


def _items(endpoint: str, path: str, token: str) -> list[dict[str, Any]]:
    try:
        return list(_document(reach.get(endpoint + path, token)).get("items", ()))
    except OSError:
        return []


def _nodes(rows: list[dict[str, Any]]) -> Iterator[Check]:
    remedies = {
        "lost": "Start its daemon or its host again; `ozy events` says when it went.",
        "degraded": "It takes no new work until that is put right; `ozy doctor` on that host.",
        "cordoned": "It was told to take no new work.",
    }
    for row in rows:
        name, state = f"node {row['name']}", row["state"]
        reason = row.get("reason") or ""
        detail = state + (f": {reason}" if reason else "")
        if state == "ready":
            yield ok(name, detail)
        else:
            yield warn(name, detail, remedies.get(state, "`ozy events` says what happened."))


def _instances(rows: list[dict[str, Any]]) -> Iterator[Check]:
    """Those in trouble; the first few of them."""
    troubled = [row for row in rows if row["state"] in TROUBLED]
    for row in troubled[:ROWS_SHOWN_MAX]:
        job = str(job_key(row["namespace"], row["job"]))  # as it is typed
        slot = row["instance"].removeprefix(row["job"])
        name, reason = f"instance {job}{slot}", row.get("reason") or ""
        where = f"{row['state']} on {row['node']}: {reason}"
        if reason.startswith(IMAGE_MISSING):
            remedy = "Correct `image` in the job file, or bring the image to every node."
            yield fail(name, where, remedy)
        else:
            yield warn(name, where, f"`ozy why {job}` and `ozy logs {job}` say more.")
    if len(troubled) > ROWS_SHOWN_MAX:
        rest = f"{len(troubled) - ROWS_SHOWN_MAX} more are in trouble"
        yield warn("instances", rest, "`ozy ps` lists them.")
