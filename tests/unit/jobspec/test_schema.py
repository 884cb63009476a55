"""The schema for editors and the reference for people say what the parser says."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from ozymandias.jobspec import reference
from ozymandias.jobspec.parse import parse
from ozymandias.jobspec.schema import schema

from .conftest import EXAMPLES

PAGE = Path(__file__).parents[3] / "docs" / "jobspec.md"
Document = Callable[[bytes], Any]


@pytest.fixture(scope="module")
def validator() -> jsonschema.Draft202012Validator:
    jsonschema.Draft202012Validator.check_schema(schema())
    return jsonschema.Draft202012Validator(schema())


@pytest.mark.parametrize("file", EXAMPLES, ids=lambda f: f.stem)
def test_examples_follow_the_schema(
    file: Path, validator: jsonschema.Draft202012Validator, document: Document
) -> None:
    """What the parser accepts, an editor with the schema accepts too."""
    assert [e.message for e in validator.iter_errors(document(file.read_bytes()))] == []


CORPUS = Path(__file__).parents[2] / "jobspec_corpus"
SHAPE_MISTAKES = [
    *(
        "unknown-field",
        "field-misspelt",
        "no-name",
        "no-image",
        "instances-too-many",
        "memory-word",
    ),
    *("healthcheck-type", "ports-text", "volume-no-space", "name-upper-case", "image-upper"),
    *("unbuilt-update", "services", "containers-list", "restart-never", "init-word"),
]


@pytest.mark.parametrize("name", SHAPE_MISTAKES)
def test_mistakes_break_the_schema(
    name: str, validator: jsonschema.Draft202012Validator, document: Document
) -> None:
    """An editor marks the ordinary mistakes while one types."""
    assert not validator.is_valid(document((CORPUS / f"{name}.yaml").read_bytes()))


@pytest.mark.parametrize(
    "text",
    [
        "near: {job: cache, weight: 5}",
        "apart: {job: cache}",
        "require: {label: zone, value: a}",
        "prefer: {label: zone, value: a, weight: 7}",
    ],
)
def test_one_stands_alone_also_in_full(
    text: str, validator: jsonschema.Draft202012Validator, document: Document
) -> None:
    """Where one of a list may stand alone: for the schema and the parser alike."""
    start = "name: web\ncontainers: {app: {image: nginx}}\n"
    begin, one = text.split(": ", 1)
    single, listed = (
        f"{start}placement:\n  {begin}: {value}\n".encode() for value in (one, f"[{one}]")
    )
    assert validator.is_valid(document(single))
    assert parse(single) == parse(listed)


def test_every_field_is_described() -> None:
    """Every property of the schema has a description, for the editor to show."""

    def walk(part: Any) -> None:
        if isinstance(part, dict):
            for name, property_schema in part.get("properties", {}).items():
                assert property_schema.get("description"), name
            for inner in part.values():
                walk(inner)
        elif isinstance(part, list):
            for inner in part:
                walk(inner)

    walk(schema())


def test_reference_is_up_to_date() -> None:
    """`python -m ozymandias.jobspec.reference docs/jobspec.md` would change nothing."""
    page = PAGE.read_text(encoding="utf-8")
    assert reference.updated(page) == page
    assert all(f"<!-- fields: {name} -->" in page for name in reference.RECORDS)


def test_examples_in_the_reference_are_valid() -> None:
    """Every whole job file on the page is accepted."""
    blocks = PAGE.read_text(encoding="utf-8").split("```yaml\n")[1:]
    jobs = [block.split("```")[0] for block in blocks if block.startswith("name:")]
    assert len(jobs) >= 2
    for job in jobs:
        parse(job.encode(), "docs/jobspec.md")
