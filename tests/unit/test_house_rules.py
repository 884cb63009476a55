"""The house rules, held by reading the source tree: who imports whom, what is pure, how long.

The arrows are those of the house: `model <- problems <- core, jobspec, ports <- store, runtime,
edge <- api <- daemon`; `cli`, `cluster` and `sim` stand outside. A rule that fails names the file
and the line, so that the message alone is enough to put it right.
"""

import ast
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from ozymandias import problems

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = ROOT / "ozymandias"
FUNCTION_LINES_MAX = 70
MODULE_LINES_MAX = 500
FORBIDDEN_NAMES = {"utils", "util", "common", "misc", "manager", "base", "helpers"}
MARKER = re.compile(r"\b(?:TO" + r"DO|FIX" + r"ME|XX" + r"X|HA" + r"CK)\b")
DEVELOPER_PATH = re.compile(r"(?<![\w.])/(?:home/\w|Users/\w|root/|work/|tmp/w/)")
PLURAL = re.compile(
    r"\{[^{}]*\} (?:more |other )?"
    r"(?:instances|nodes|jobs|moves|pods|others|errors|places|addresses|members|days|minutes)\b"
)
NEVER_ONE = (  # or no number
    "== 1 else",
    "{days} days",
    "/ 60:.0f} minutes",
    "{ask.kin} instances",
    "{mass} nodes",
    "{len(voters) + 1} members",
    "{view.members_max} members",
    "moves from",
)

# What each package may import of this project, beside itself.
MAY_IMPORT: dict[str, set[str]] = {
    "model": set(),
    "problems": {"model"},
    "ports": {"model"},
    "telemetry": {"model", "ports"},
    "core": {"model", "problems"},
    "jobspec": {"model", "problems"},
    # The door for schedules applies plans by core's own function, and asserts by it.
    "store": {"model", "problems", "ports", "telemetry", "core"},
    "runtime": {"model", "ports", "telemetry"},
    "edge": {"model", "ports", "telemetry", "problems"},
    "api": {"model", "problems", "jobspec", "core", "store", "ports", "telemetry"},
    "daemon": {
        *("model", "problems", "ports", "telemetry", "core", "jobspec", "store"),
        *("runtime", "edge", "api"),
    },
    "cluster": {"model", "problems", "ports", "store", "telemetry"},
    "cli": {"model", "problems", "jobspec", "cluster"},
    "sim": {"model", "ports", "daemon", "problems", "core", "store", "telemetry", "jobspec", "api"},
    "__main__": {"daemon"},
    "__init__": set(),
}
# A single module of a package that is pure and may be used further out than its package.
EXCEPTIONS: set[tuple[str, str]] = {
    # Rendering podman's configuration is the same for a daemon's host and for a local cluster.
    ("cluster", "ozymandias.runtime.containers_conf"),
    # Rendering CoreDNS's configuration is pure; making a cluster writes it to a file.
    ("cluster", "ozymandias.edge.corefile"),
    # The doctor reads a daemon's settings and asks its store as the daemon does.
    ("cluster", "ozymandias.daemon.config"),
    ("cluster", "ozymandias.daemon.connect"),
    # `ozy replay FILE` runs the scheduler itself, without a cluster, as `validate` parses.
    ("cli", "ozymandias.store.replay"),
}
IMPURE = {
    *("time", "random", "asyncio", "os", "socket", "logging", "pathlib", "subprocess", "secrets"),
    *("threading", "io", "sys", "tempfile", "shutil", "uuid", "signal", "structlog", "datetime"),
}
STANDARD_LIBRARY_ONLY = {"model"}


def modules() -> list[Path]:
    return sorted(p for p in PACKAGE.rglob("*.py") if not p.name.endswith("_pb2.py"))


def package_of(path: Path) -> str:
    first = path.relative_to(PACKAGE).parts[0]
    return first.removesuffix(".py")


def where(path: Path, line: int) -> str:
    return f"{path.relative_to(ROOT)}:{line}"


def imports(path: Path) -> Iterator[tuple[int, str]]:
    """Every module imported, at the top or inside a function: (line, dotted name)."""
    for node in ast.walk(ast.parse(path.read_text(), str(path))):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield node.lineno, alias.name
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{where(path, node.lineno)}: relative import"
            assert node.module is not None
            for alias in node.names:
                yield node.lineno, _module_named(f"{node.module}.{alias.name}") or node.module


def _module_named(dotted: str) -> str | None:
    """`from package import name` may mean a module; None when the name is not one of ours."""
    path = ROOT / dotted.replace(".", "/")
    return dotted if path.with_suffix(".py").exists() or path.is_dir() else None


def test_imports_follow_the_arrows() -> None:
    """No package imports one that the house does not put below it."""
    wrong = []
    for path in modules():
        package = package_of(path)
        for line, name in imports(path):
            parts = name.split(".")
            if parts[0] != "ozymandias" or len(parts) < 2 or parts[1].startswith("__"):
                continue
            if parts[1] == package or parts[1] in MAY_IMPORT[package]:
                continue
            if (package, name) not in EXCEPTIONS:
                wrong.append(f"{where(path, line)}: {package} must not import {name}")
    assert not wrong, "\n".join(wrong)


def test_every_package_has_its_arrow() -> None:
    """A new package must be given its place in the house before it is used."""
    assert {package_of(path) for path in modules()} <= MAY_IMPORT.keys()


def test_the_core_is_pure() -> None:
    """Nothing in core/ can wait, read, roll dice or log: values in, values out."""
    wrong = []
    for path in (PACKAGE / "core").rglob("*.py"):
        for line, name in imports(path):
            if name.split(".")[0] in IMPURE:
                wrong.append(f"{where(path, line)}: {name}")
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.AsyncFunctionDef | ast.Await):
                wrong.append(f"{where(path, node.lineno)}: async")
            if isinstance(node, ast.Call) and getattr(node.func, "id", "") in {"open", "print"}:
                wrong.append(f"{where(path, node.lineno)}: {ast.unparse(node.func)}")
    assert not wrong, "\n".join(wrong)


def test_the_model_needs_only_the_standard_library_and_msgspec() -> None:
    """The nouns can be used anywhere, because they bring next to nothing with them."""
    wrong = [
        f"{where(path, line)}: {name}"
        for path in (PACKAGE / "model").rglob("*.py")
        for line, name in imports(path)
        if name.split(".")[0] not in {*sys.stdlib_module_names, "ozymandias", "msgspec"}
    ]
    assert not wrong, "\n".join(wrong)


def test_functions_fit_a_screen() -> None:
    """No function is longer than a screen, its docstring and decorators included."""
    wrong = []
    for path in modules():
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                lines = (node.end_lineno or node.lineno) - node.lineno + 1
                if lines > FUNCTION_LINES_MAX:
                    wrong.append(f"{where(path, node.lineno)}: {node.name} has {lines} lines")
    assert not wrong, "\n".join(wrong)


def test_modules_hold_one_idea() -> None:
    """No module is so long that it must hold a second idea."""
    lengths = {path: len(path.read_text().splitlines()) for path in modules()}
    wrong = [f"{where(p, n)}: {n} lines" for p, n in lengths.items() if n > MODULE_LINES_MAX]
    assert not wrong, "\n".join(wrong)


def test_modules_say_what_they_are_for() -> None:
    """Every module that holds code begins with a docstring."""
    wrong = [
        where(path, 1)
        for path in modules()
        if (tree := ast.parse(path.read_text())).body and not ast.get_docstring(tree)
    ]
    assert not wrong, "\n".join(wrong)


def test_modules_have_names_that_say_something() -> None:
    """Nothing is named after being a drawer."""
    wrong = [where(path, 1) for path in modules() if path.stem in FORBIDDEN_NAMES]
    assert not wrong, "\n".join(wrong)


def test_loops_start_no_loose_tasks() -> None:
    """A task belongs to a TaskGroup; nobody else would notice how it ends."""
    wrong = []
    for path in modules():
        for node in ast.walk(ast.parse(path.read_text())):
            if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Attribute):
                continue
            owner = ast.unparse(node.func.value)
            loose = owner in {"asyncio", "loop", "asyncio.get_running_loop()"}
            if node.func.attr == "ensure_future" or (node.func.attr == "create_task" and loose):
                wrong.append(f"{where(path, node.lineno)}: {owner}.{node.func.attr}")
    assert not wrong, "\n".join(wrong)


def tracked_files() -> list[Path]:
    """What the repository holds; without git (an unpacked archive) the package and the tests."""
    try:
        listed = subprocess.run(
            ["git", "-C", str(ROOT), "ls-files", "-z"], capture_output=True, check=True, text=True
        ).stdout.split("\0")
        return [ROOT / name for name in listed if name and (ROOT / name).is_file()]
    except (OSError, subprocess.CalledProcessError):
        return [p for d in ("ozymandias", "tests") for p in (ROOT / d).rglob("*") if p.is_file()]


def matches(pattern: re.Pattern[str]) -> list[str]:
    found = []
    for path in tracked_files():
        if path.name == "requirements.lock" or path.suffix in {".png", ".ico"}:
            continue
        for number, line in enumerate(path.read_text(errors="replace").splitlines(), 1):
            if pattern.search(line):
                found.append(f"{where(path, number)}: {line.strip()[:120]}")
    return found


def test_no_leftover_markers() -> None:
    """What is not done yet is an issue of its own, not a note in the source."""
    assert not (found := matches(MARKER)), "\n".join(found)


def test_things_are_counted_by_a_word_that_goes_with_one() -> None:
    """`1 instances` is nobody's language: numbers before a plural are `counted`, or never 1."""
    found = [
        f"{path.relative_to(ROOT)}:{number}: {line.strip()}"
        for path in sorted(PACKAGE.rglob("*.py"))
        if "sim" not in path.parts
        for number, line in enumerate(path.read_text().splitlines(), 1)
        if PLURAL.search(line) and not any(words in line for words in NEVER_ONE)
    ]
    assert not found


def test_no_paths_of_a_developers_machine() -> None:
    """The files speak of the project alone, and run from wherever they are cloned."""
    own = Path(__file__).relative_to(ROOT)
    found = [line for line in matches(DEVELOPER_PATH) if not line.startswith(f"{own}:")]
    assert not found, "\n".join(found)


def test_the_lock_file_names_no_registry() -> None:
    """Every locked package has hashes, and where it came from is the reader's choice."""
    text = (ROOT / "requirements.lock").read_text()
    assert "://" not in text
    requirements = re.split(r"\n(?=\S)", text.strip())
    assert all("--hash=sha256:" in r for r in requirements if "==" in r.split("\n")[0])


@pytest.mark.parametrize("kind", problems.CATALOGUE, ids=lambda kind: kind.slug)
def test_every_problem_has_its_page(kind: problems.Kind) -> None:
    """A problem's `type` leads to a section that explains it."""
    page = ROOT / "docs" / "errors.markdown"
    headings = re.findall(r"^#+ +(.+?) *$", page.read_text(), re.MULTILINE)
    assert kind.slug in {heading.strip("`") for heading in headings}


def test_problems_have_slugs_of_their_own() -> None:
    """No two problems share a slug, and slugs are words and hyphens."""
    slugs = [kind.slug for kind in problems.CATALOGUE]
    assert len(slugs) == len(set(slugs))
    assert all(re.fullmatch(r"[a-z]+(-[a-z]+)*", slug) for slug in slugs)
