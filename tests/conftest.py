"""What holds for all tests."""

import os
import signal

import pytest
from hypothesis import settings

# Whoever runs the tests in the background may have them ignore Ctrl-C, and every program they
# start would inherit that. Some tests are about Ctrl-C: here it means what it means to a person.
signal.signal(signal.SIGINT, signal.default_int_handler)

# The same examples every time: a red run is then about the change it is run for. OZY_RANDOM=1
# draws others, to search. How long an example takes says nothing on a busy machine.
settings.register_profile("steady", derandomize=True, deadline=None)
settings.register_profile("random", deadline=None)
settings.load_profile("random" if os.environ.get("OZY_RANDOM") else "steady")

# Side by side, files that take long begin first: the last one then keeps nobody waiting.
LONG = (
    *("test_founding_upkeep.py", "test_made_up.py", "test_founding.py"),
    *("test_control_plane.py", "test_local.py", "test_hosts_join.py", "test_commands.py"),
)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    items.sort(key=lambda item: LONG.index(item.path.name) if item.path.name in LONG else 99)
