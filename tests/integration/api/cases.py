"""Requests made up from the API's own description, and what must hold of every answer.

Good ones and broken ones, to jobs that exist and to names that nobody has. No answer may be a
server error, and each must be one that the description has: its status, its type, its headers and
its shape. Streams are read without `follow`, and nobody waits for a revision: those would not end.
"""

import json
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import requests
import schemathesis
from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis import strategies as st
from schemathesis import GenerationMode, openapi
from schemathesis.checks import not_a_server_error
from schemathesis.specs.openapi.checks import (
    allow_header_conformance,
    content_type_conformance,
    response_headers_conformance,
    response_schema_conformance,
    status_code_conformance,
)

from tests.integration.api.rig import TOKEN, Cluster

CHECKS = [
    not_a_server_error,
    status_code_conformance,
    content_type_conformance,
    response_headers_conformance,
    response_schema_conformance,
    allow_header_conformance,
]
NOT_FOR_EVER = ("follow", "wait")
LIGHT = 50
KNOWN = {"namespace": "default", "job": "known", "instance": "known-0"}


@dataclass
class Tally:
    statuses: Counter[int] = field(default_factory=Counter)
    seconds: float = 0.0

    @property
    def cases(self) -> int:
        return sum(self.statuses.values())


def known_job() -> bytes:
    container = {"image": "demo", "ports": ["80:8000"], "memory": "16M"}
    return json.dumps({"name": "known", "containers": {"app": container}}).encode()


def run(cluster: Cluster, wanted: int, number: int = 0, tally: Tally | None = None) -> Tally:
    """In rounds over all operations, until there were at least so many cases.

    ``tally`` is told as it goes: after a failure it says how far it went.
    """
    description = cluster.request("GET", "/v1/openapi.json").document
    schema = openapi.from_dict(description)
    found = [
        (strategy, examples)
        for path, operations in description["paths"].items()
        for method in operations
        for strategy, examples in _strategies(schema[path][method.upper()], path)
    ]
    tally, started = tally or Tally(), time.monotonic()
    with requests.Session() as session:
        session.headers["Authorization"] = f"Bearer {TOKEN}"
        ask = _asking(cluster, session, tally)
        while tally.cases < wanted:
            for strategy, examples in found:
                if tally.cases < wanted:
                    cluster.request("POST", "/v1/jobs", known_job())
                    _explore(strategy, ask, examples, number)
            number += 1
    tally.seconds = time.monotonic() - started
    return tally


def _strategies(operation: Any, path: str) -> list[tuple[Any, int]]:
    """Ways to make requests, and how many of each per round: job files take long to make up."""
    heavy = 2 if path in ("/v1/jobs", "/v1/plan") and operation.body else 0
    medium = 10 if path.endswith(("/exec", "/scale")) else 0
    found = [(operation.as_strategy(), heavy or medium or LIGHT)]
    places = {name: value for name, value in KNOWN.items() if f"{{{name}}}" in path}
    if places:
        found.append((operation.as_strategy(path_parameters=places), heavy or medium or LIGHT))
    if operation.query or operation.body or places:
        broken = operation.as_strategy(generation_mode=GenerationMode.NEGATIVE)
        found.append((broken, heavy or medium or LIGHT // 2))
    return found


def _asking(
    cluster: Cluster, session: requests.Session, tally: Tally
) -> Callable[[schemathesis.Case], None]:
    base = cluster.machines["n1"].endpoint

    def ask(case: schemathesis.Case) -> None:
        for name in NOT_FOR_EVER:
            if isinstance(case.query, dict):
                case.query.pop(name, None)
        response = case.call(base_url=base, session=session, timeout=30)
        tally.statuses[response.status_code] += 1
        case.validate_response(response, checks=CHECKS)

    return ask


def _explore(
    strategy: Any, ask: Callable[[schemathesis.Case], None], examples: int, number: int
) -> None:
    @seed(number)
    @settings(
        max_examples=examples,
        deadline=None,
        database=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @given(data=st.data())
    def explore(data: Any) -> None:
        ask(data.draw(strategy))

    explore()
