"""What several tests of the job file share."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ozymandias.jobspec.loader import Mapping, Node, Scalar, Sequence, load
from ozymandias.jobspec.parse import parse
from ozymandias.jobspec.report import Report
from ozymandias.model.job import Container

EXAMPLES = sorted((Path(__file__).parents[3] / "jobspecs").rglob("*.yaml"))


def plain(node: Node) -> Any:
    """The tree without its marks, as a JSON document."""
    if isinstance(node, Scalar):
        return node.value
    if isinstance(node, Sequence):
        return [plain(item) for item in node.items]
    assert isinstance(node, Mapping)
    return {key: plain(entry.value) for key, entry in node.entries.items()}


@pytest.fixture
def document() -> Callable[[bytes], Any]:
    """Reads a file into a JSON document, by our own loader."""

    def read(data: bytes) -> Any:
        report = Report()
        root = load(data, report)
        assert root is not None and not report.count, report.errors()
        return plain(root)

    return read


@pytest.fixture
def container() -> Callable[[str], Container]:
    """The container that a few lines describe, in a job that has another one named db."""

    def read(lines: str) -> Container:
        indented = "".join(f"    {line}\n" for line in lines.splitlines())
        text = f"name: web\ncontainers:\n  app:\n    image: nginx\n{indented}  db: {{image: x}}\n"
        return parse(text.encode()).container("app")

    return read
