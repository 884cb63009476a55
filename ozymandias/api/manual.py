"""`docs/api.md` and `docs/openapi.json`, made from the route table.

`python -m ozymandias.api.manual docs` writes them; a test holds that they are up to date.
"""

import json
import sys
from collections.abc import Iterator
from pathlib import Path

from ozymandias.api.openapi import describe
from ozymandias.api.rights import needed
from ozymandias.api.routes import EVERYWHERE, Route
from ozymandias.api.table import ROUTES
from ozymandias.problems import FORBIDDEN

_START = """\
# The API

Made from the route table by `python -m ozymandias.api.manual docs`. Every daemon serves its own
description as OpenAPI 3.1 at `/v1/openapi.json` ([a copy](openapi.json)).

"""
_MORE = """\

## What holds everywhere

- Every answer carries `X-Request-Id`, the caller's own or a new one; the log and the audit name it.
- A failure is `application/problem+json`; [errors](errors.markdown) lists the kinds.
- A parameter that is not listed here is refused, and so is one that is given twice.
- Bodies are at most 1 MiB and must arrive within 30 s.
- Lists have `items` and `next`; `next` is null at the end, else the `cursor` of the next page.
- `ETag` names the state of a job. `If-Match` takes it, or the job's version (`"3"`), or `*`; if the
  job is in another state the change is refused with 412 `changed-meanwhile`.
- `Idempotency-Key` on submit, scale and restart: a second request with the same key and body is
  answered like the first (`Idempotency-Replayed: true`) and not carried out; with another body it
  is refused. A key is known while the job keeps the version that it made (the last 20), on every
  node. For what made no version (scale, restart): until the job's next change with a key. What
  changed nothing is not remembered.
- A token has the right `admin` or `deploy` ([Who may do what](operations.md#who-may-do-what)). With
  `deploy` everything can be read, and what takes `deploy` be done to jobs that are not protected;
  `protected: true` and `override_freeze` take `admin`.
- One token may ask 500 times a second, after a burst of 2,000 (`[api] requests_per_second`);
  strangers far less. 429 and 503 say in `Retry-After` how many seconds to wait.
- Changes are written to `audit.log` in the node's state directory, one line of JSON each: time,
  request, who (token id, node or uid), what, before, after, outcome. Two files of at most
  `[api] audit_max` are kept.
- Streams end properly when the daemon is stopped, and within 5 s when their token is taken away.
"""


def pages() -> dict[str, str]:
    """File names and what belongs in them."""
    return {
        "api.md": _START + "\n".join(_reference()) + "\n" + _MORE,
        "openapi.json": json.dumps(describe(ROUTES), indent=1) + "\n",
    }


def _reference() -> Iterator[str]:
    yield f"| request | what it does | answers |\n| --- | --- | --- |\n{_table()}"
    for route in ROUTES:
        yield f"\n## {route.method} {route.path}\n"
        yield route.about.replace("\n", " ") + "\n"
        yield from _details(route)


def _table() -> str:
    return "\n".join(
        f"| `{r.method} {r.path}` | {r.about.partition(chr(10))[0]} |"
        f" {', '.join(str(status) for status in sorted(r.answers))} |"
        for r in ROUTES
    )


def _details(route: Route) -> Iterator[str]:
    for parameter in route.query:
        kind = parameter.schema["type"]
        yield f"- `{parameter.name}` ({kind}): {parameter.about}"
    if route.headers:
        yield f"- Headers: {', '.join(f'`{name}`' for name in route.headers)}"
    if route.body:
        name = route.body.model.__name__ if route.body.model else "a job file"
        yield f"- Body: {name}, as {' or '.join(route.body.media)}"
    for status, model in sorted(route.answers.items()):
        yield f"- {status}: {getattr(model, '__name__', model)}, as {' or '.join(route.media)}"
    kinds = {k.slug: k.status for k in route.problems}
    if kinds:
        yield "- Problems: " + ", ".join(f"{status} `{slug}`" for slug, status in kinds.items())
    if route.change:
        yield f"- Takes the right `{needed(route.change)}`, else 403 `{FORBIDDEN.slug}`."
    if not route.is_open:
        yield "- And: " + ", ".join(f"{k.status} `{k.slug}`" for k in EVERYWHERE)
    else:
        yield "- Asks for no token."


def main() -> None:
    folder = Path(sys.argv[1])
    for name, text in pages().items():
        (folder / name).write_text(text)


if __name__ == "__main__":
    main()
