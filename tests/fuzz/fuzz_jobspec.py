"""A fuzz target for the loader of job files: whatever comes in, a Job or a problem comes out, soon.

    python -m tests.fuzz.fuzz_jobspec --count 100000 --seed 7

Inputs are made from the examples and the corpus of broken files: their trees with nodes swapped,
doubled, deleted, nested or replaced by odd scalars, written in a style by chance; their text with
words of YAML put in; and bytes out of nowhere. An input depends on the seed and its number alone.
A failure leaves the input in a file and names seed, number and file.
"""

import argparse
import json
import random
import string
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from ozymandias.jobspec import loader
from ozymandias.jobspec.parse import parse
from ozymandias.jobspec.report import Report
from ozymandias.model.job import Job
from ozymandias.problems import INVALID_JOB, ProblemError

ROOT = Path(__file__).parents[2]
CPU_SECONDS_MAX = 0.1
TRIES = 3  # the quickest counts: a machine has other things to do, too
DETAIL_CHARACTERS_MAX = 500
DEPTH_BEYOND = 40
FILE_BYTES_BEYOND = 70_000

WORDS = (
    *("[", "]", "{", "}", ": ", "- ", "\n", "  ", "\t", "&a ", "*a", "!!int ", "!!python/name:os "),
    *("<<: *a", "? ", "'", '"', "|\n", ">\n", "|+9\n", "#", "%YAML 9.9\n", "---\n", "...\n", "\0"),
    *("\x85", "\u2028", "\ufeff", "\U0001f600", "\u0301", "\u202e", "\x7f", "\x1b[31m", "\\", "@"),
    *("name", "containers", "image", "numInstances", "80:80", "2G", "30s", "null", "~", "`", ","),
)
SCALARS: tuple[Any, ...] = (
    *(None, True, False, 0, -1, 1, 2**31, 2**63, -(2**64), 10**300, 1.5, -0.0, 1e308, 1e-320),
    *(float("inf"), float("nan"), "", " ", "no", "on", "22:22", "010", "0x10", "1_000", "1e5"),
    *(
        "1.10",
        "~",
        "null",
        "=",
        "<<",
        "2G",
        "2g",
        "-2G",
        "99999999999G",
        "1.5G",
        "0",
        "0s",
        "1h30m",
    ),
    *(
        "80:80",
        "80:80/udp",
        "0:0",
        "65536",
        "-1:80",
        "a:b",
        "../../etc/passwd",
        "/",
        "//",
        "/a/../b",
    ),
    *("a" * 300, "A", "ü", "日本", "\u202e", "a\nb", "a\0b", "\x1b[31m", "\ud7ff", "\U0010ffff"),
    *("${HOME}", "{{ x }}", "'", '"', "\\", "a/b@sha256:" + "0" * 64, "localhost", ":", "-", "---"),
    *([], {}, [[]], [{}], {"": ""}, {"a": {}}),
)
ALPHABET = string.printable + "äé\u2028\u0000\u00a0\ufeff\U0001f600"

Tree = Any


@dataclass(frozen=True, slots=True, kw_only=True)
class Failure:
    seed: int
    number: int
    reason: str
    data: bytes

    def save(self) -> Path:
        with tempfile.NamedTemporaryFile(
            prefix="fuzz-jobspec-", suffix=".yaml", delete=False
        ) as file:
            file.write(self.data)
        return Path(file.name)


# Inputs -------------------------------------------------------------------------------------------


class Seeds:
    """The files to begin from: as bytes, and those that are YAML as trees, too."""

    def __init__(self) -> None:
        good = sorted((ROOT / "jobspecs").rglob("*.yaml"))
        broken = sorted((ROOT / "tests" / "jobspec_corpus").glob("*.yaml"))
        self.texts = [file.read_bytes()[:FILE_BYTES_BEYOND] for file in (*good, *broken)]
        self.good = [tree for file in good for tree in _tree(file)]
        self.trees = [*self.good, *(tree for file in broken for tree in _tree(file))]
        self.keys = sorted({key for tree in self.trees for key in _keys(tree)})


def _tree(file: Path) -> Iterator[Tree]:
    """As the loader itself reads it; nothing where it can't."""
    found = _plain(loader.load(file.read_bytes(), Report()))
    if isinstance(found, dict) and _depth(found) <= DEPTH_BEYOND:
        yield found


def _plain(node: loader.Node | None) -> Tree:
    if isinstance(node, loader.Scalar):
        return node.value
    if isinstance(node, loader.Sequence):
        return [_plain(item) for item in node.items]
    if isinstance(node, loader.Mapping):
        return {key: _plain(entry.value) for key, entry in node.entries.items()}
    return None


def _depth(tree: Tree) -> int:
    depth, level = 0, [tree]
    while level:
        depth += 1
        inner = [t.values() if isinstance(t, dict) else t for t in level if t and _nests(t)]
        level = [item for items in inner for item in items]
    return depth


def _nests(tree: Tree) -> bool:
    return isinstance(tree, dict | list)


def _keys(tree: Tree) -> Iterator[str]:
    if isinstance(tree, dict):
        for key, value in tree.items():
            yield str(key)
            yield from _keys(value)
    elif isinstance(tree, list):
        for item in tree:
            yield from _keys(item)


def make(seeds: Seeds, seed: int, number: int) -> bytes:
    """The input of that number; the same on every machine."""
    dice = random.Random(f"{seed}/{number}")
    kind = dice.random()
    if kind < 0.6:
        begin = dice.choice(seeds.good if dice.random() < 0.7 else seeds.trees)
        tree = json.loads(json.dumps(begin))
        for _ in range(dice.choice((1, 1, 1, 2, 3, 6))):
            if len(json.dumps(tree)) < FILE_BYTES_BEYOND:
                # Through text, so that no two places share a node.
                tree = json.loads(json.dumps(_mutate_tree(tree, dice, seeds)))
        data = _write(tree, dice)
        return _mutate_text(data, dice) if dice.random() < 0.2 else data
    if kind < 0.9:
        data = dice.choice(seeds.texts)
        for _ in range(dice.choice((1, 2, 5, 20))):
            data = _mutate_text(data, dice)
        return data
    if kind < 0.95:
        words = dice.choices(WORDS, k=dice.randrange(1, 200))
        return "".join(words).encode("utf-8", "surrogatepass")
    return dice.randbytes(dice.randrange(0, 400))


def _paths(tree: Tree, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    yield path
    items: Any = ()
    if isinstance(tree, dict):
        items = tree.items()
    elif isinstance(tree, list):
        items = enumerate(tree)
    for key, value in items:
        yield from _paths(value, (*path, key))


def _get(tree: Tree, path: tuple[Any, ...]) -> Tree:
    for key in path:
        tree = tree[key]
    return tree


def _put(tree: Tree, path: tuple[Any, ...], value: Tree) -> Tree:
    if not path:
        return value
    _get(tree, path[:-1])[path[-1]] = value
    return tree


def _mutate_tree(tree: Tree, dice: random.Random, seeds: Seeds) -> Tree:
    paths = list(_paths(tree))
    path = max(dice.choices(paths, k=2), key=len)  # rather deep: near the root all is lost
    here = _get(tree, path)
    match dice.randrange(10):
        case 0 | 9:  # an odd scalar
            return _put(tree, path, _scalar(here, dice))
        case 1 if path:  # delete
            parent = _get(tree, path[:-1])
            del parent[path[-1]]
            return tree
        case 2:  # two nodes change places, unless one is inside the other
            other = dice.choice(paths)
            if path[: len(other)] != other and other[: len(path)] != path:
                there = _get(tree, other)
                return _put(_put(tree, path, there), other, here)
            return tree
        case 3 if isinstance(here, list) and here:  # many of the same
            here.extend([dice.choice(here)] * dice.choice((1, 5, 100, 1500)))
            return tree
        case 4 if isinstance(here, dict):  # a key from elsewhere, or almost
            here[_word(dice, seeds)] = json.loads(json.dumps(dice.choice(SCALARS)))
            return tree
        case 5 if isinstance(here, dict) and here:  # a key by another name
            key = dice.choice(list(here))
            here[_word(dice, seeds)] = here.pop(key)
            return tree
        case 6:  # a nest
            for _ in range(dice.choice((1, 3, 15, DEPTH_BEYOND))):
                here = [here] if dice.random() < 0.5 else {_word(dice, seeds): here}
            return _put(tree, path, here)
        case 7:  # a part of another file
            donor = dice.choice(seeds.trees)
            part = _get(donor, dice.choice(list(_paths(donor))))
            return _put(tree, path, json.loads(json.dumps(part)))
        case _:  # text by chance
            text = "".join(dice.choices(ALPHABET, k=dice.choice((1, 5, 30, 3000))))
            return _put(tree, path, text)


def _scalar(here: Tree, dice: random.Random) -> Tree:
    """Odd, or almost what was there."""
    if isinstance(here, int) and dice.random() < 0.6:
        return here + dice.choice((-1, 1, 1, 2, 10, 1000))
    if isinstance(here, str) and dice.random() < 0.3:
        return here + dice.choice(("a", "1", "-", " ", "é"))
    return json.loads(json.dumps(dice.choice(SCALARS)))


def _word(dice: random.Random, seeds: Seeds) -> str:
    word = dice.choice(seeds.keys)
    if word and dice.random() < 0.4:
        place = dice.randrange(len(word))
        word = word[:place] + dice.choice(ALPHABET) + word[place + dice.randrange(2) :]
    return word


def _write(tree: Tree, dice: random.Random) -> bytes:
    """JSON, or YAML in some style."""
    if dice.random() < 0.3:
        indent = dice.choice((None, 0, 2))
        return json.dumps(tree, ensure_ascii=dice.random() < 0.5, indent=indent).encode(
            "utf-8", "surrogatepass"
        )
    try:
        text: str = yaml.dump(
            tree,
            Dumper=yaml.CSafeDumper,
            default_flow_style=dice.choice((True, False, None)),
            default_style=dice.choice((*(None,) * 16, "'", '"', "|", ">")),
            allow_unicode=dice.random() < 0.5,
            width=dice.choice((20, 80, 10_000)),
            explicit_start=dice.random() < 0.2,
            sort_keys=dice.random() < 0.5,
        )
    except (yaml.YAMLError, TypeError):  # keys of several types do not sort
        text = json.dumps(tree)
    return text.encode("utf-8", "surrogatepass")


def _mutate_text(data: bytes, dice: random.Random) -> bytes:
    place = dice.randrange(len(data) + 1)
    match dice.randrange(6):
        case 0:
            word = dice.choice(WORDS).encode("utf-8", "surrogatepass")
            return data[:place] + word + data[place + dice.randrange(3) :]
        case 1:
            return data[:place] + data[place + dice.randrange(1, 30) :]
        case 2:
            end = place + dice.randrange(1, 200)
            return data[:end] + data[place:end] * dice.choice((1, 2, 50)) + data[end:]
        case 3:
            return data[:place] + dice.randbytes(dice.randrange(1, 4)) + data[place:]
        case 4:
            bracket = dice.choice((b"[", b"{", b"{a: ", b"- ", b"? ", b"'", b"!", b"&a "))
            return data[:place] + bracket * dice.choice((1, 30, 3000)) + data[place:]
        case _:
            lines = data.split(b"\n")
            dice.shuffle(lines)
            return b"\n".join(lines)


# Checking -----------------------------------------------------------------------------------------


def complaint(data: bytes) -> str:
    """What is wrong with the loader's answer to this input; "" if nothing is."""
    spent = 0.0
    for _ in range(TRIES):
        started = time.thread_time()
        try:
            outcome: Job | ProblemError = parse(data)
        except ProblemError as error:
            outcome = error
        except Exception as error:
            return f"{type(error).__name__}: {error}"
        spent = time.thread_time() - started
        if spent <= CPU_SECONDS_MAX:
            return _wrong(outcome)
    return f"took {spent * 1000:.0f} ms of CPU time"


def _wrong(outcome: Job | ProblemError) -> str:
    if isinstance(outcome, Job):
        return "" if outcome.containers else "a job without containers"
    problem = outcome.problem
    if problem.kind is not INVALID_JOB:
        return f"the problem is {problem.kind.slug}"
    errors = problem.fields["errors"]
    if not errors:
        return "a problem without a complaint"
    for error in errors:
        if error["line"] < 1 or error["column"] < 1 or not error["detail"]:
            return f"a complaint without its place: {error}"
        if not error["detail"].isprintable() or len(error["detail"]) > DETAIL_CHARACTERS_MAX:
            return f"a complaint that can't be printed: {error['detail'][:80]!r}"
    return ""


def run(
    seed: int, count: int, seconds: float = float("inf"), check: Callable[[bytes], str] = complaint
) -> tuple[int, Failure | None]:
    """How many inputs were tried, and the first that failed."""
    seeds = Seeds()
    check(seeds.texts[0])  # the first one pays for what is made on first use
    end = time.monotonic() + seconds
    for number in range(count):
        if time.monotonic() > end:
            return number, None
        data = make(seeds, seed, number)
        if reason := check(data):
            return number, Failure(seed=seed, number=number, reason=reason, data=data)
    return count, None


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz.fuzz_jobspec")
    parser.add_argument("--count", type=int, default=100_000, help="inputs to try")
    parser.add_argument("--seed", type=int, default=random.randrange(2**32))
    parser.add_argument("--seconds", type=float, default=float("inf"), help="at most so long")
    arguments = parser.parse_args()
    tried, failure = run(arguments.seed, arguments.count, arguments.seconds)
    if failure is None:
        print(f"jobspec: {tried} inputs with seed {arguments.seed}: problems and jobs only")
        return 0
    print(f"jobspec: seed {failure.seed}, input {failure.number}: {failure.reason}")
    print(f"jobspec: the input is in {failure.save()}")
    return 1


if __name__ == "__main__":
    sys.exit(main())
