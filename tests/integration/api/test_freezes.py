"""Freeze windows through `ozy` and the API: set, seen, obeyed, overridden."""

import json

from tests.integration.api.rig import Cluster, until
from tests.integration.api.test_nodes import places, status, web


def test_windows_are_set_listed_and_removed(own_cluster: Cluster) -> None:
    """For people and for scripts, with what makes no sense refused."""
    ozy = own_cluster.ozy
    assert "No freeze windows" in ozy("freeze").out
    added = ozy(
        *("freeze", "add", "nights", "--from", "22:00", "--to", "06:00", "--weekdays", "mon-fri"),
        *("--timezone", "Europe/Berlin", "--reason", "nobody looks"),
    )
    assert added.code == 0, added.err
    words = "Freeze window nights, 22:00 to 06:00 Europe/Berlin, mon-fri: nobody looks."
    assert added.out.strip() == words
    assert "nights  " in ozy("freeze").out
    (row,) = ozy("freeze", "-o", "json").document["items"]
    assert (row["from"], row["to"], row["weekdays"]) == ("22:00", "06:00", "mon-fri")
    for arguments, words in (
        (("--from", "25:00", "--to", "06:00"), "not a time of day"),
        (("--from", "06:00", "--to", "06:00"), "no minute of the week free"),
        (("--from", "06:00", "--to", "22:00", "--weekdays", "someday"), "is not a weekday"),
        (("--from", "06:00", "--to", "22:00", "--timezone", "Berlin"), "no time zone 'Berlin'"),
    ):
        refused = ozy("freeze", "add", "other", *arguments)
        assert refused.code == 2 and words in refused.err, refused.err
    assert ozy("freeze", "remove", "other").code == 4
    gone = ozy("freeze", "remove", "nights", "--reason", "somebody looks").out
    assert "Freeze window nights is gone: somebody looks." in gone
    until(lambda: "nights is gone: somebody looks (by " in ozy("events").out, 10)
    (line,) = own_cluster.audit_file.read_text().splitlines()[-1:]
    assert json.loads(line)["reason"] == "somebody looks"


def test_a_change_in_a_freeze_waits_unless_a_reason_is_given(own_cluster: Cluster) -> None:
    """The version is taken at once; why, status and submit say what it waits for."""
    ozy, ask = own_cluster.ozy, own_cluster.request
    assert ask("POST", "/v1/jobs", web()).status == 201
    until(lambda: places(own_cluster, "web") == ["n1", "n2", "n3"], 20)
    assert ozy("freeze", "now", "--for", "2h", "--reason", "a demo").code == 0
    file = own_cluster.folder / "web.yaml"
    file.write_bytes(web(memory="128M"))
    planned = ozy("plan", str(file))
    assert "It fits: 3 to place, 0 to move, 3 to stop." in planned.out
    assert "But nothing is replaced now: frozen by now until" in planned.out
    assert "(a demo)" in planned.out and "--override-freeze REASON" in planned.out
    assert "frozen by now" in ozy("plan", str(file), "-o", "json").document["frozen"]
    waits = ozy("submit", str(file))
    assert waits.code == 0, waits.err
    assert "frozen by now until" in waits.out and "--override-freeze" in waits.out
    assert "waits: frozen by now until" in ozy("status", "web").out
    assert "The change waits: it is frozen by now until" in ozy("why", "web").out
    found = status(own_cluster, "web")
    assert found["version"] == 2 and {i["version"] for i in found["instances"]} == {1}
    done = ozy("submit", str(file), "--override-freeze", "CVE-1", "--timeout", "60")
    assert done.code == 0 and "is up: 3 of 3" in done.out, done.out + done.err
    lines = [json.loads(line) for line in own_cluster.audit_file.read_text().splitlines()]
    assert lines[-1]["after"]["override_freeze"] == "CVE-1"
    until(lambda: "not waiting for the end of a freeze (CVE-1)" in ozy("events").out, 10)
    assert "frozen" not in ozy("plan", str(file)).out
    restarted = ozy("restart", "web", "--detach").out
    assert "web is frozen by now until" in restarted and "--override-freeze" in restarted
    assert "frozen by now" in ozy("plan", str(file)).out
    other = own_cluster.job("other")
    assert "frozen" not in ozy("plan", other).out  # a new job replaces nothing
    unexplained = ozy("freeze", "remove", "now")
    assert unexplained.code == 2 and "window now holds" in unexplained.err, unexplained.err
    assert ozy("freeze", "remove", "now", "--reason", "the demo is over").code == 0
    until(lambda: status(own_cluster, "web")["up_to_date"] == 3, 30)


def test_an_empty_reason_overrides_nothing(own_cluster: Cluster) -> None:
    """Who says --override-freeze "" is told, by the command and by the API; nothing is changed."""
    file = own_cluster.job("web")
    for arguments in (("submit", file), ("restart", "web")):
        for empty in ("", "  "):
            refused = own_cluster.ozy(*arguments, "--override-freeze", empty)
            assert refused.code == 2 and "needs a reason" in refused.err, refused.err
    answer = own_cluster.request("POST", "/v1/jobs?override_freeze=", web())
    assert answer.status == 400 and "needs a reason" in answer.document["detail"]
    assert own_cluster.request("GET", "/v1/jobs").document["items"] == []
