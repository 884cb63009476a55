"""Log lines and what becomes of them."""

import subprocess
import sys

import structlog
from hypothesis import given
from hypothesis import strategies as st

from ozymandias import telemetry

PROGRAM = """
from ozymandias import telemetry
telemetry.configure()
for _ in range(3):
    telemetry.log("event.happened", reason="because")
    telemetry.warn("event.failed", reason="because")
print("goes on")
"""


def test_a_full_disk_ends_nobody() -> None:
    """Lines that can't be written are lost; the program goes on."""
    with open("/dev/full", "w") as full:
        done = subprocess.run(
            [sys.executable, "-c", PROGRAM], stdout=subprocess.PIPE, stderr=full, check=False
        )
    assert done.stdout == b"goes on\n"


@given(
    st.dictionaries(
        st.sampled_from(("job", "reason", "after", "exception", "count")),
        st.one_of(st.text(max_size=40), st.sampled_from(("", "web", "it's new", "a=b")), st.none()),
    )
)
def test_plain_lines_are_those_of_structlog(keys: dict[str, object]) -> None:
    """Lines without colours read as before: people and scripts know them."""
    if keys.get("exception", "") is None:
        del keys["exception"]
    usual = structlog.dev.ConsoleRenderer(colors=False)
    line = {"timestamp": "2026-11-17T23:00:00Z", "level": "info", "event": "job.new", **keys}
    assert telemetry.plain(None, "info", dict(line)) == usual(None, "info", dict(line))
