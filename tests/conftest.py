"""What holds for all tests."""

import os
import signal

import pytest
from hypothesis import settings

from tests import halves

# Whoever runs the tests in the background may have them ignore Ctrl-C, and every program they
# start would inherit that. Some tests are about Ctrl-C: here it means what it means to a person.
signal.signal(signal.SIGINT, signal.default_int_handler)

# The same examples every time: a red run is then about the change it is run for. OZY_RANDOM=1
# draws others, to search. How long an example takes says nothing on a busy machine.
settings.register_profile("steady", derandomize=True, deadline=None)
settings.register_profile("random", deadline=None)
settings.load_profile("random" if os.environ.get("OZY_RANDOM") else "steady")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--half", type=int, choices=(1, 2), help="only this half of the files")


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """With `--half` the files of one half are left, see tests/halves.py."""
    if chosen := config.getoption("half"):
        mine = halves.divided(item.nodeid.partition("::")[0] for item in items)[chosen - 1]
        others = [item for item in items if item.nodeid.partition("::")[0] not in mine]
        config.hook.pytest_deselected(items=others)
        items[:] = [item for item in items if item not in set(others)]
