"""Log lines and what becomes of them."""

import subprocess
import sys

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
