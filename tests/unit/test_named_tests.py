"""Pages that say which test shows what name tests that there are."""

import ast
import re
from collections import defaultdict
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PAGES = [
    page.relative_to(ROOT)
    for folder in ("docs", "tests")
    for page in sorted((ROOT / folder).rglob("*.m*"))
    if page.suffix in (".md", ".markdown")
]
# `test_file.py`, `folder/test_file.py::test_this`, `::test_that` of the same file, `test_other`.
NAMED = re.compile(r"`(?:[\w/]*?(test_\w+\.py))?(?:(::)?(test_\w+))?`")


def functions() -> dict[str, set[str]]:
    """File -> its tests; of all files: "". Two files may have one name."""
    found: dict[str, set[str]] = defaultdict(set)
    for file in (ROOT / "tests").rglob("test_*.py"):
        for node in ast.parse(file.read_text()).body:
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                found[file.name].add(node.name)
                found[""].add(node.name)
    return found


@pytest.fixture(scope="module")
def tests() -> dict[str, set[str]]:
    return functions()


@pytest.mark.parametrize("page", PAGES, ids=str)
def test_tests_that_pages_name_are_there(page: Path, tests: dict[str, set[str]]) -> None:
    """A test that is renamed is renamed where it is spoken of, too."""
    missing, last = [], ""
    for file, colons, function in NAMED.findall((ROOT / page).read_text()):
        last = file or last
        if file and file not in tests:
            missing.append(file)
        elif function and function not in tests.get(last if file or colons else "", set()):
            missing.append(f"{last}::{function}" if file or colons else function)
    assert not missing
