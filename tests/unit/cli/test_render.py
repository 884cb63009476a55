"""Text for people: aligned, cut on terminals only, and never steering the terminal."""

import io
import os

import pytest

from ozymandias.cli.complain import problem_text
from ozymandias.cli.display import Lines
from ozymandias.cli.foresee import NAMES_SHOWN_MAX, draw_fates, draw_followed
from ozymandias.cli.job import _draw_steps, urls
from ozymandias.cli.render import clean, paint, sentence, table
from ozymandias.jobspec.parse import parse
from ozymandias.problems import (
    INSUFFICIENT_MEMORY,
    JOB_NOT_FOUND,
    NodeShortfall,
    ProblemError,
    Suggestion,
    does_not_fit,
)

GIB = 2**30


def test_columns_are_aligned_and_nothing_is_cut_without_a_terminal() -> None:
    """A pipe gets every character; an empty cell is a dash."""
    lines = table(("A", "LONG"), [("x" * 5, "y" * 300), (None, "")], stream=io.StringIO())
    assert lines == ["A      LONG", "xxxxx  " + "y" * 300, "-      -"]


def test_control_characters_do_not_reach_the_terminal() -> None:
    """What a container says can't move the cursor or set the title."""
    assert "\x1b" not in clean("\x1b]0;title\x07\x1b[2J")
    assert table(("A",), [("a\x1b[2Jb\n",)], stream=io.StringIO())[1] == "a [2Jb"


def test_who_is_without_a_place_is_named_or_counted(capsys: pytest.CaptureFixture[str]) -> None:
    """Who loses its place by its name, as long as they are few; who had none before as a number."""
    many = [f"web-{slot}" for slot in range(NAMES_SHOWN_MAX + 3)]

    def shown(waiting: list[str], after: int) -> str:
        row = {"job": "web", "namespace": "default", "outcome": "degrades", "wanted": 20}
        draw_fates([{**row, "waiting": waiting, "before": 20, "after": after, "priority": 0}])
        return capsys.readouterr().out.splitlines()[1].partition("   0  ")[2].strip()

    assert shown([], 20).endswith("-")
    assert shown([], 17).endswith("3 instances")
    assert shown(["web-1", "web-2"], 18).endswith("web-1, web-2")
    assert shown(["web-1", "web-2"], 14).endswith("web-1, web-2 and 4 more")
    assert shown(many, 20 - len(many)).endswith("web-7 and 3 more")


def test_no_colours_without_a_terminal() -> None:
    """A file gets plain text."""
    assert paint("healthy", "32", io.StringIO()) == "healthy"


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_no_colour_is_honoured(monkeypatch: pytest.MonkeyPatch) -> None:
    """NO_COLOR holds on a terminal, too."""
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setenv("TERM", "xterm")
    assert paint("x", "32", Terminal()) == "\x1b[32mx\x1b[0m"
    monkeypatch.setenv("NO_COLOR", "1")
    assert paint("x", "32", Terminal()) == "x"


def test_a_job_that_does_not_fit_shows_every_node_and_a_way_out() -> None:
    """Title, detail, what is free and short per node, and the checked suggestions."""
    shortfall = NodeShortfall(
        node="n1",
        free_memory_bytes=GIB,
        free_disk_bytes=10 * GIB,
        short_memory_bytes=GIB // 2,
        short_disk_bytes=0,
        taken_ports=("80/tcp",),
    )
    problem = does_not_fit(
        INSUFFICIENT_MEMORY,
        job="web",
        detail="Job requires 12G of memory but only 10G can be allocated.",
        required=12 * GIB,
        placeable=10 * GIB,
        nodes=[shortfall],
        suggestions=[Suggestion(text="run 5 instances instead of 6", change={"numInstances": 5})],
    )
    assert problem_text(problem).splitlines() == [
        "Error: Insufficient memory for job",
        "Job requires 12G of memory but only 10G can be allocated.",
        "",
        "  NODE  MEMORY FREE  SHORT BY  DISK FREE  SHORT BY  NOTE",
        "  n1    1G           512M      10G        -         port 80/tcp taken",
        "",
        "It would fit if you:",
        "  * run 5 instances instead of 6",
    ]


def test_a_bad_job_file_is_shown_with_carets() -> None:
    """Every mistake has its place, its line and a caret under the column."""
    source = "name: web\ncontainers:\n  app:\n    imaje: demo\n"
    with pytest.raises(ProblemError) as caught:
        parse(source.encode(), "web.yaml")
    lines = problem_text(caught.value.problem, source).splitlines()
    assert lines[0] == "Error: Job file is not valid"
    place = next(n for n, line in enumerate(lines) if line.startswith("web.yaml:4:5:"))
    assert lines[place + 1 : place + 4] == [
        "    4 |     imaje: demo",
        "      |     ^",
        '  hint: did you mean "image"?',
    ]


def test_a_long_line_is_cut_around_its_mistake() -> None:
    """A job file on one line of a megabyte does not fill the screen."""
    source = "{name: web, " + " " * 5000 + "imaje: x}"
    errors = [{"pointer": "imaje", "line": 1, "column": 5013, "detail": "unknown", "hint": ""}]
    problem = JOB_NOT_FOUND("-", file="f", errors=errors)
    lines = problem_text(problem, source).splitlines()
    assert max(map(len, lines)) < 150
    assert lines[2][lines[3].index("^") :].startswith("imaje")


@pytest.mark.parametrize(
    ("ingress", "hosts", "expected"),
    [
        ("http://127.0.0.1:8080", ["web.localhost"], ["http://web.localhost:8080/"]),
        ("http://127.0.0.1:80", ["a.b/api"], ["http://a.b/api"]),
        ("", ["a.b"], ["http://a.b (through the ingress of any node)"]),
        ("http://127.0.0.1:8080", [], []),
    ],
)
def test_where_a_job_is_reached(ingress: str, hosts: list[str], expected: list[str]) -> None:
    """Hosts are shown as a browser takes them."""
    assert urls(ingress, hosts) == expected


def test_a_terminal_that_does_not_know_its_size_cuts_nothing() -> None:
    """A serial line says that it has 0 columns."""
    ours, theirs = os.openpty()
    with os.fdopen(ours), os.fdopen(theirs, "w") as stream:
        assert os.get_terminal_size(stream.fileno()).columns == 0
        lines = table(["NODE", "REASON"], [["n1", "takes no new work"]], stream=stream)
    assert "NODE  REASON" in lines[0] and lines[1:] == ["n1    takes no new work"]


def test_names_are_written_as_they_are() -> None:
    """A sentence begins large, unless it begins with what has a name of its own."""
    assert sentence("labels of n1: none", "n1") == "Labels of n1: none."
    assert sentence("n1 is cordoned", "n1") == "n1 is cordoned."


def test_others_are_named_with_their_namespace(capsys: pytest.CaptureFixture[str]) -> None:
    """As they are typed: in whichever namespace the plan's own job is."""
    prod = {"job": "web", "namespace": "prod"}
    mine = {"instance": "shop-0", "job": "shop", "namespace": "default", "node": "n1"}
    theirs = {"instance": "web-1", **prod, "reason": "displaced by shop"}
    _draw_steps(
        {
            "place": [{**mine, "reason": "n1 has room"}],
            "stop": [{**theirs, "node": "n1"}],
            "move": [{**theirs, "from": "n1", "to": "n2"}],
            "stay": [{"instance": "old-1", "node": "n2", "reason": "an earlier daemon says so"}],
        }
    )
    fate = {**prod, "wanted": 3, "before": 3, "priority": 0, "outcome": "degrades"}
    hurt = [
        {**fate, "waiting": ["web-1", "web-2"], "after": 1},
        {**fate, "waiting": [], "after": 2},
    ]
    draw_followed({"others": [{**theirs, "from": "n1", "to": None}], "hurt": hurt})
    draw_fates(hurt[:1])
    assert capsys.readouterr().out.splitlines() == [
        "  + shop-0 on n1: n1 has room",
        "  > prod/web-1 n1 -> n2: displaced by shop",
        "  - prod/web-1 on n1: displaced by shop",
        "  = old-1 on n2: an earlier daemon says so",
        "It fits: 1 to place, 1 to move, 1 to stop, 1 to stay as it is.",
        "Meanwhile, of other jobs:",
        "  - prod/web-1 on n1: displaced by shop",
        "In the end prod/web-1, prod/web-2 would wait.",
        "In the end 1 of prod/web would wait.",
        "JOB       OUTCOME   LIVE    WANTED  PRIORITY  WITHOUT A PLACE",
        "prod/web  degrades  3 -> 1  3       0         prod/web-1, prod/web-2",
    ]


def test_who_is_waited_for_is_named_with_its_namespace(capsys: pytest.CaptureFixture[str]) -> None:
    """Line by line, as everywhere else: when it changes, and when it is gone."""
    row = {"job": "web", "node": "n1", "state": "healthy", "version": 1, "reason": ""}
    lines = Lines()
    lines.draw("", [{**row, "instance": f"web-{n}", "namespace": n} for n in ("default", "prod")])
    lines.draw("", [])
    assert capsys.readouterr().out.splitlines() == [
        "web-default on n1: healthy",
        "prod/web-prod on n1: healthy",
        "prod/web-prod of version 1: gone",
        "web-default of version 1: gone",
    ]


def test_what_follows_for_others_is_told_after_a_plan(capsys: pytest.CaptureFixture[str]) -> None:
    """Who comes and goes meanwhile, who waits in the end; nothing if a daemon does not tell."""
    change = {"instance": "db-0", "job": "db", "namespace": "default", "reason": "room appeared"}
    found = {
        "others": [{**change, "from": None, "to": "n1"}],
        "missing": 1,
        "outdated": 2,
        "hurt": [
            {"job": "batch", "namespace": "default", "waiting": ["batch-1", "batch-2"]},
            {"job": "logs", "namespace": "default", "waiting": [], "wanted": 3, "after": 2},
        ],
        "others_left_out": "the freeze has no end in sight",
    }
    draw_followed(found)
    assert capsys.readouterr().out.splitlines() == [
        "Meanwhile, of other jobs:",
        "  + db-0 on n1: room appeared",
        "In the end 1 instance would wait.",
        "In the end 2 instances would not be replaced.",
        "In the end batch-1, batch-2 would wait.",
        "In the end 1 of logs would wait.",
        "From then on what others do is left out: the freeze has no end in sight.",
    ]
    draw_followed({})
    assert not capsys.readouterr().out
