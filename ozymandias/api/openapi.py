"""The API's own description (OpenAPI 3.1), drawn from the route table and the types beside it."""

import inspect
import re
from collections.abc import Iterable
from typing import Any

import msgspec

from ozymandias import __version__
from ozymandias.api import models, models_settings
from ozymandias.api.problem_response import CONTENT_TYPE
from ozymandias.api.rights import needed
from ozymandias.api.routes import EVERYWHERE, Parameter, Route
from ozymandias.jobspec.schema import schema as job_schema
from ozymandias.problems import FORBIDDEN, REQUEST_TIMEOUT, Kind

Document = dict[str, Any]

_PLACES = re.compile(r"{(\w+)}")
_NAME = {"type": "string", "pattern": "^[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?$"}
_INSTANCE = {"type": "string", "pattern": "^[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?-[0-9]{1,6}$"}
_REF = "#/components/schemas/{name}"
_ABOUT = """\
JSON over HTTP. On TCP every request but those to `/healthz`, `/readyz` and `/metrics` shows a token
(`Authorization: Bearer ...`); the Unix socket of a node belongs to root and asks for none. A token
has the right `admin`, to everything, or `deploy`, to read and to change jobs that are not
protected; changes name the right that they take at least. Every failure is a problem document (RFC
9457). Lists come in pages: `limit`, and `cursor` with the `next` of the page before. Answers about
a job carry an ETag; changes heed `If-Match` with it, or with the job's version in quotes. A change
with an `Idempotency-Key` that was carried out before is not carried out again. 429 and 503 say in
`Retry-After` when to come back.
"""
_HEADERS: dict[str, Document] = {
    "If-Match": {
        "description": "Only if what is changed still has this version or ETag.",
        "schema": {"type": "string", "pattern": '^(\\*|"[0-9]{1,18}")$'},
    },
    "Idempotency-Key": {
        "description": "Names this request: sent again, it is answered and not carried out again.",
        "schema": {"type": "string", "pattern": "^[A-Za-z0-9_-]{1,255}$"},
    },
}
_REQUEST_ID: Document = {
    "X-Request-Id": {"schema": {"type": "string"}, "description": "Also in the log."}
}
_ETAG: Document = {"ETag": {"schema": {"type": "string"}, "description": "Changes with it."}}
_RETRY: Document = {"Retry-After": {"schema": {"type": "integer", "minimum": 1}, "required": True}}
_WITH_ETAG = (
    models.Changed,
    models.JobStatus,
    models_settings.ClusterSettings,
    models_settings.SettingsChanged,
    models_settings.FreezeList,
    models_settings.FreezeChanged,
)


def describe(routes: Iterable[Route]) -> Document:
    routes = tuple(routes)
    types = {
        model for route in routes for model in route.answers.values() if model not in (str, dict)
    }
    types |= {route.body.model for route in routes if route.body and route.body.model}
    types |= {models.Problem, models.EndedRun}
    ordered = sorted(types, key=lambda model: model.__name__)
    _, schemas = msgspec.json.schema_components(ordered, ref_template=_REF)
    for described in schemas.values():
        if "description" in described:  # a docstring: only Python 3.13 takes its indentation away
            described["description"] = inspect.cleandoc(described["description"])
    job = {key: value for key, value in job_schema().items() if key != "$schema"}
    paths: dict[str, Document] = {}
    for route in routes:
        paths.setdefault(route.path, {})[route.method.lower()] = _operation(route)
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "Ozymandias",
            "version": __version__,
            "description": _ABOUT,
            "license": {"name": "MIT", "identifier": "MIT"},
        },
        "servers": [{"url": "/"}],
        "security": [{"token": []}],
        "paths": paths,
        "components": {
            "schemas": {**schemas, "JobFile": job},
            "securitySchemes": {"token": {"type": "http", "scheme": "bearer"}},
        },
    }


def _operation(route: Route) -> Document:
    summary, _, rest = route.about.partition("\n")
    operation: Document = {
        "operationId": _operation_id(route),
        "summary": summary,
        "tags": [route.path.split("/")[2] if route.path.startswith("/v1/") else "machines"],
        "responses": _responses(route),
    }
    if rest:
        operation["description"] = rest
    parameters = [*_path_parameters(route), *map(_query_parameter, route.query)]
    parameters += [{"name": name, "in": "header", **_HEADERS[name]} for name in route.headers]
    if parameters:
        operation["parameters"] = parameters
    if route.is_open:
        operation["security"] = []
    elif route.change:  # the role that it takes, in OpenAPI's words
        operation["security"] = [{"token": [needed(route.change).value]}]
    if route.body:
        name = route.body.model.__name__ if route.body.model else "JobFile"
        content = {
            media: {"schema": {"$ref": _REF.format(name=name)}} for media in route.body.media
        }
        operation["requestBody"] = {"required": True, "content": content}
    return operation


def _operation_id(route: Route) -> str:
    words = [w for w in _PLACES.sub("", route.path).split("/") if w not in ("", "v1")]
    one = "one_" if route.path.endswith("}") else ""
    return "_".join([route.method.lower(), one + "_".join(words).replace(".", "_")])


def _path_parameters(route: Route) -> list[Document]:
    return [
        {
            "name": name,
            "in": "path",
            "required": True,
            "schema": _INSTANCE if name == "instance" else _NAME,
        }
        for name in _PLACES.findall(route.path)
    ]


def _query_parameter(parameter: Parameter) -> Document:
    return {
        "name": parameter.name,
        "in": "query",
        "description": parameter.about,
        "schema": dict(parameter.schema),
    }


def _responses(route: Route) -> Document:
    found: Document = {}
    for status, model in sorted(route.answers.items()):
        headers = _REQUEST_ID | (_ETAG if model in _WITH_ETAG else {})
        found[str(status)] = {
            "description": {200: "Done.", 201: "Created."}[status],
            "headers": headers if route.media == ("application/json",) else {},
            "content": {media: {"schema": _schema(model, media)} for media in route.media},
        }
    for status, kinds in sorted(_by_status(route).items()):
        slugs = ", ".join(f"`{kind.slug}`" for kind in kinds)
        headers = _REQUEST_ID | (_RETRY if status in (429, 503) else {})
        found[str(status)] = {
            "description": f"A problem: {slugs}.",
            "headers": headers,
            "content": {CONTENT_TYPE: {"schema": {"$ref": _REF.format(name="Problem")}}},
        }
    return found


def _schema(model: Any, media: str) -> Document:
    """Streams are described by their lines; the whole is text to this kind of document."""
    if media != "application/json":
        return {"type": "string"}
    if model is dict:
        return {"type": "object"}
    return {"$ref": _REF.format(name=model.__name__)}


def _by_status(route: Route) -> dict[int, list[Kind]]:
    kinds = [*route.problems, *(() if route.is_open else EVERYWHERE)]
    if route.change:
        kinds.append(FORBIDDEN)
    if route.body:
        kinds.append(REQUEST_TIMEOUT)
    found: dict[int, list[Kind]] = {}
    for kind in kinds:
        if kind not in found.setdefault(kind.status, []):
            found[kind.status].append(kind)
    return found
