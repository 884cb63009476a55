"""A bounded run of the loader's fuzz target, and that the target itself can fail."""

import pytest

from tests.fuzz import fuzz_jobspec

SEED = 20
COUNT = 20_000
SECONDS_MAX = 4.0


def test_nothing_but_jobs_and_problems_soon() -> None:
    """As many inputs as fit into a few seconds: none surprises the loader, none takes it long."""
    tried, failure = fuzz_jobspec.run(SEED, COUNT, SECONDS_MAX)
    assert failure is None, (
        f"seed {failure.seed}, input {failure.number}: {failure.reason}; see {failure.save()}"
    )
    assert tried >= 50


def test_an_input_depends_on_seed_and_number_alone() -> None:
    """What failed once can be made again."""
    seeds = fuzz_jobspec.Seeds()
    first = [fuzz_jobspec.make(seeds, 1, n) for n in range(10)]
    assert [fuzz_jobspec.make(fuzz_jobspec.Seeds(), 1, n) for n in range(10)] == first
    assert first != [fuzz_jobspec.make(seeds, 2, n) for n in range(10)]


def test_a_failure_is_kept() -> None:
    """The input that failed is written to a file, and its number is told."""
    tried, failure = fuzz_jobspec.run(1, 10, check=lambda data: "bad" if b"name" in data else "")
    assert failure is not None
    assert failure.number == tried
    file = failure.save()
    assert file.read_bytes() == failure.data == fuzz_jobspec.make(fuzz_jobspec.Seeds(), 1, tried)
    file.unlink()


def test_both_good_and_broken_inputs_are_made() -> None:
    """A fair part of the inputs gets as far as being a job."""
    seeds = fuzz_jobspec.Seeds()
    outcomes = []
    for number in range(400):
        try:
            fuzz_jobspec.parse(fuzz_jobspec.make(seeds, 3, number))
            outcomes.append(True)
        except fuzz_jobspec.ProblemError:
            outcomes.append(False)
    assert 5 < sum(outcomes) < 300


@pytest.mark.parametrize(
    "data",
    [
        b"{name: a, containers: {a: {image: b, ports: [" + b'"80:80",' * 99 + b'"80:80"]}}}',
    ],
    ids=["the same port a hundred times"],
)
def test_what_was_found_once(data: bytes) -> None:
    """Inputs that were too slow or a surprise before."""
    assert fuzz_jobspec.complaint(data) == ""
