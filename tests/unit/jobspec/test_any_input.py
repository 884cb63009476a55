"""Whatever the bytes: a Job or a problem, nothing else."""

import json

from hypothesis import example, given, settings
from hypothesis import strategies as st

from ozymandias.jobspec.parse import parse
from ozymandias.model.job import Job
from ozymandias.problems import INVALID_JOB, ProblemError

from .conftest import EXAMPLES

FILES = [file.read_bytes() for file in EXAMPLES]
WORDS = [
    *(b"[", b"]", b"{", b"}", b": ", b"- ", b"\n", b"  ", b"&a ", b"*a", b"!!int ", b"<<: ", b"? "),
    *(b"'", b'"', b"|\n", b">\n", b"#", b"%", b"---\n", b"...\n", b"\t", b"\0", b"\xff", b"\xc3"),
    *(
        b"null",
        b"true",
        b"-1",
        b"1e400",
        b".nan",
        b"0x10",
        b"9" * 400,
        b"~",
        b"''",
        b"\\0",
        b"\\x00",
    ),
    *(b"\xe2\x80\xa8", b"\xef\xbb\xbf", b"\xf0\x9f\x98\x80", b"name", b"containers", b"80:80"),
]


def check(data: bytes) -> None:
    try:
        job = parse(data)
    except ProblemError as error:
        assert error.problem.kind is INVALID_JOB
        errors = error.problem.fields["errors"]
        assert errors
        assert all(e["line"] >= 1 and e["column"] >= 1 and e["detail"] for e in errors)
        assert all(len(e["detail"]) < 500 and e["detail"].isprintable() for e in errors)
    else:
        assert isinstance(job, Job)
        assert all(container.name for container in job.containers)


@settings(max_examples=300, deadline=None)
@given(st.binary(max_size=300))
@example(b"")
@example(b"\xef\xbb\xbf")
def test_any_bytes(data: bytes) -> None:
    """Arbitrary bytes never surprise the parser."""
    check(data)


@settings(max_examples=300, deadline=None)
@given(st.lists(st.sampled_from(WORDS), max_size=40).map(b"".join))
def test_any_yaml_like_text(data: bytes) -> None:
    """Neither do words of YAML in any order."""
    check(data)


@settings(max_examples=500, deadline=None)
@given(
    data=st.sampled_from(FILES),
    edits=st.lists(
        st.tuples(
            st.floats(0, 1), st.integers(0, 12), st.sampled_from(WORDS) | st.binary(max_size=4)
        ),
        min_size=1,
        max_size=5,
    ),
)
def test_mutated_examples(data: bytes, edits: list[tuple[float, int, bytes]]) -> None:
    """Nor does a good file with something cut out or put in anywhere."""
    for where, cut, word in edits:
        start = int(where * len(data))
        data = data[:start] + word + data[start + cut :]
    check(data)


KEYS = [
    *("name", "containers", "image", "ports", "volumes", "path", "space", "type", "port", "host"),
    *("environment", "value", "test", "command", "condition", "ingress", "app", "db", "memory"),
    *("healthcheck", "depends_on", "labels", "tmpfs"),
]
SCALARS = st.sampled_from(
    ["x", "", "80:80", "1G", "/a", "a=b", "ü", "-", "a\nb", "$(x)", "\x1b[0m"]
)
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | SCALARS,
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(KEYS),
            inner,
            max_size=5,
        )
    ),
    max_leaves=15,
)


@settings(max_examples=300, deadline=None)
@given(VALUES)
def test_any_shape(value: object) -> None:
    """Nor do known fields that hold values of any shape."""
    check(json.dumps(value).encode())
    check(json.dumps({"name": "web", "containers": {"app": value, "db": {"image": "x"}}}).encode())
    fields = value if isinstance(value, dict) else {"image": value}
    check(json.dumps({"name": "web", "containers": {"app": fields}, "ingress": value}).encode())
