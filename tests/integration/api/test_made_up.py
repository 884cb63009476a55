"""Requests made up from the API's description: a file of its own, since it takes a while."""

from pathlib import Path

import pytest

from ozymandias.api.limits import Limits, Rate
from tests.integration.api import cases
from tests.integration.api.rig import Cluster

CASES = 5000


@pytest.mark.timeout(600)
def test_requests_made_up_from_the_description(tmp_path: Path) -> None:
    """Thousands of good and broken requests: no server error, no answer that is not described."""
    limits = Limits(caller=Rate(per_second=0, burst=0), stranger=Rate(per_second=0, burst=0))
    with Cluster(tmp_path, nodes=1, limits=limits, lease_seconds=600) as cluster:
        tally = cases.run(cluster, CASES)
    assert tally.cases >= CASES
    assert {200, 400, 404, 409, 412, 422} <= set(tally.statuses)
