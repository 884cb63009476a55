"""JSON Schema (2020-12) of the job file, for editors: drawn from the same tables as the parser.

It says what a field may hold, not how fields go together; `ozy validate` says both.
"""

from typing import Any

from ozymandias.jobspec.job import JOB

DIALECT = "https://json-schema.org/draft/2020-12/schema"


def schema() -> dict[str, Any]:
    return {
        "$schema": DIALECT,
        "title": "Ozymandias job file",
        "description": "One job: the containers of a pod, and how many of that pod run.",
        **JOB.schema(),
    }
