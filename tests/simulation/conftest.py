"""What daemons log in a simulation is of no interest: traces tell what happened."""

from collections.abc import Iterator

import pytest
import structlog

from ozymandias.sim.search import be_quiet


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    be_quiet()
    yield
    structlog.reset_defaults()
