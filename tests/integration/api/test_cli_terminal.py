"""What a person sees: `ozy` under a real pty, wide and narrow, with and without colours."""

from collections.abc import Callable

from ozymandias.ports import ProbeResult
from tests.integration.api.rig import Cluster, until
from tests.integration.api.terminal import Terminal


def check(cluster: Cluster, job: str, answer: list[ProbeResult]) -> dict[str, object]:
    """A health check of a job that is answered with the last of a list."""

    def chosen(before: Callable[..., ProbeResult | None]) -> Callable[..., ProbeResult | None]:
        return lambda pod, container, check: (
            answer[-1] if pod.job == job else before(pod, container, check)
        )

    for machine in cluster.machines.values():
        machine.host.probe = chosen(machine.host.probe)
    return {"healthcheck": {"type": "http", "port": 8000, "interval": 1, "start_period": 60}}


def test_submit_draws_one_block_over_itself(cluster: Cluster) -> None:
    """However often it is drawn, the headline is there once, and the end says where to go."""
    answer = [ProbeResult(healthy=False, reason="HTTP 503")]
    file = cluster.job("drawn", numInstances=3, container=check(cluster, "drawn", answer))
    with Terminal(cluster, "submit", file) as terminal:
        terminal.until(lambda text: "not healthy yet: HTTP 503" in text)
        terminal.until(lambda text: "healthy  2s" in text)
        assert terminal.screen.text.count("drawn version 1: 0 of 3 healthy") == 1
        answer.append(ProbeResult(healthy=True, reason="HTTP 200"))
        assert terminal.end() == 0
        lines = terminal.screen.text.splitlines()
        assert lines[0] == "drawn version 1 submitted: 3 to place."
        assert lines[1].startswith("drawn version 1: 3 of 3 healthy")
        assert [line.split()[0] for line in lines[2:6]] == [
            *("INSTANCE", "drawn-0", "drawn-1", "drawn-2")
        ]
        assert lines[6].startswith("✔ drawn version 1 is up: 3 of 3 instances healthy")
        assert lines[7] == "  http://drawn.localhost:8080/"
        assert "32" in terminal.screen.colours


def test_a_block_fits_the_smallest_terminal(cluster: Cluster) -> None:
    """More instances than rows, and reasons wider than the screen: nothing scrolls or wraps."""
    answer = [ProbeResult(healthy=False, reason="a reason that is much wider than the terminal")]
    file = cluster.job("small", numInstances=12, container=check(cluster, "small", answer))
    with Terminal(cluster, "submit", file, columns=44, rows=9) as terminal:
        terminal.until(lambda text: "app: n" in text)
        terminal.until(lambda text: "healthy  3s" in text)
        lines = terminal.screen.text.splitlines()
        assert len(lines) <= 9
        assert sum(line.startswith("small version 1: 0 of 12") for line in lines) == 1
        assert "  and 8 more" in lines
        assert terminal.interrupt() == 130
        assert "small goes on." in terminal.screen.text
    cluster.ozy("stop", "small")


def test_status_is_watched(cluster: Cluster) -> None:
    """New instances join, the state changes in place, Ctrl-C ends it without a word."""
    cluster.ozy("submit", cluster.job("watched"))
    with Terminal(cluster, "status", "watched", "--watch") as terminal:
        terminal.until(lambda text: "watched version 1: healthy, 1 of 1 healthy" in text)
        cluster.ozy("scale", "watched", "2")
        terminal.until(lambda text: "healthy, 2 of 2 healthy" in text and "watched-1" in text)
        assert terminal.screen.text.count("INSTANCE") == 1
        assert terminal.interrupt() == 130
        assert "Interrupted" not in terminal.screen.text


def test_a_watched_job_that_goes_ends_the_watch(cluster: Cluster) -> None:
    """Off a terminal: a line per change, and the last one says that it is gone."""
    cluster.ozy("submit", cluster.job("leaving"))
    process = cluster.start_ozy("status", "leaving", "-w")
    assert process.stdout is not None
    assert process.stdout.readline().startswith("leaving-0 on n")
    cluster.ozy("stop", "leaving")
    out, err = process.communicate(timeout=15)
    assert (process.returncode, err) == (0, "")
    assert out.splitlines()[-1] == "leaving is gone."
    assert cluster.ozy("status", "leaving", "-w").code == 4


def test_no_color_still_draws(cluster: Cluster) -> None:
    """NO_COLOR takes away the colours and nothing else."""
    with Terminal(cluster, "submit", cluster.job("plain"), NO_COLOR="1") as terminal:
        assert terminal.end() == 0
        assert terminal.screen.colours == set()
        assert "✔ plain version 1 is up" in terminal.screen.text
    with Terminal(cluster, "status", "plain", "-w", TERM="dumb") as terminal:
        terminal.until(lambda text: "plain-0 on n" in text)
        assert terminal.interrupt() == 130
        assert "\x1b" not in terminal.raw


def test_events_are_followed_in_columns(cluster: Cluster) -> None:
    """They come by themselves, aligned, good ones in green."""
    with Terminal(cluster, "events", "-f", "--job", "seen", columns=140) as terminal:
        cluster.ozy("submit", cluster.job("seen", numInstances=2))
        text = terminal.until(lambda text: text.count("instance.healthy") == 2)
        assert terminal.interrupt() == 130
        assert "32" in terminal.screen.colours
    rows = [line for line in text.splitlines() if "instance." in line]
    assert len({row.index("instance.") for row in rows}) == 1


def test_tables_in_narrow_terminals_lose_no_words(cluster: Cluster) -> None:
    """What does not fit beside goes below; what says nothing is left out; nothing is cut."""
    answer = [ProbeResult(healthy=False, reason="the database of this very shop is not there yet")]
    file = cluster.job("tight", container=check(cluster, "tight", answer))
    cluster.ozy("submit", file, "-d")
    until(lambda: "very shop" in cluster.ozy("ps", "tight").out)
    for columns in (40, 60, 80, 120):
        with Terminal(cluster, "ps", "tight", columns=columns) as terminal:
            assert terminal.end() == 0
            words = " ".join(terminal.screen.text.split())
            assert "the database of this very shop is not there yet" in words, columns
            assert all(len(line) <= columns for line in terminal.screen.lines[1:])
    with Terminal(cluster, "nodes", columns=80) as terminal:
        assert terminal.end() == 0
        assert "REASON" not in terminal.screen.text
    assert "REASON" in cluster.ozy("nodes").out
