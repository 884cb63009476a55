"""Settings of the cluster through `ozy` and the API."""

import json

from tests.integration.api.rig import Cluster, until


def test_settings_are_shown_and_changed_through_ozy(own_cluster: Cluster) -> None:
    """For people and for scripts; every node then answers the same, and the event says who."""
    ozy = own_cluster.ozy
    first = ozy("settings")
    assert "target     70 % of a node's memory" in first.out
    assert "platform-critical        10000     predefined" in first.out
    assert "No node pools" in first.out
    done = ozy(
        *("settings", "set", "--target", "80", "--rebalance", "on", "--class", "batch=100"),
        *("--pool", "prod=role == prod", "--pool", "prod=zone in [a, b]"),
        *("--prefer-pool", "dev=role == dev"),
    )
    assert done.code == 0, done.err
    assert "Nodes are packed to 80 % of their memory, no longer to 70 %" in done.out
    found = ozy("settings", "-o", "json").document
    assert (found["target_percent"], found["rebalance"]) == (80, "on")
    assert found["priority_classes"] == {"batch": 100}
    assert found["pools"] == {
        "dev": {"require": ["role == dev"], "hard": False},
        "prod": {"require": ["role == prod", "zone in [a, b]"], "hard": True},
    }
    shown = ozy("settings").out
    assert "prod       only       role == prod; zone in [a, b]" in shown
    for machine in own_cluster.machines.values():
        until(lambda m=machine: m.daemon.mirror.snapshot().settings.target_percent == 80, 10)
    until(lambda: "priority class batch is 100" in ozy("events").out, 10)
    assert "(by " in ozy("events").out
    lines = [json.loads(line) for line in own_cluster.audit_file.read_text().splitlines()]
    line = next(line for line in lines if line["what"] == "settings.change")
    assert (line["outcome"], line["before"]["target_percent"]) == ("done", 70)
    assert line["after"]["target_percent"] == 80 and line["settings"] == "cluster"


def test_settings_that_make_no_sense_are_refused(own_cluster: Cluster) -> None:
    """Exit code 2 with the reason; a change for another revision is exit code 5."""
    ozy = own_cluster.ozy
    for arguments, words in (
        (("--target", "5"), "The target is 5 %"),
        (("--class", "platform-low=1"), "can't be changed"),
        (("--class", "batch=many"), "'many' is not a number"),
        (("--class", "batch"), "is not NAME="),
        (("--pool", "prod=role ~ x"), "A rule of the node pool of prod"),
        (("--pool", "prod=cores >= 4"), 'write ">" and the number before'),
        (("--pool", "a=x exists", "--prefer-pool", "a=y exists"), "--pool too"),
        ((), "at least one option"),
    ):
        refused = ozy("settings", "set", *arguments)
        assert refused.code == 2, arguments
        assert words in refused.err, refused.err
    assert ozy("settings", "set", "--target", "75", "--if-revision", "0").code == 0
    late = ozy("settings", "set", "--target", "60", "--if-revision", "0")
    assert late.code == 5 and "meant for another state" in late.err
    assert ozy("settings", "-o", "json").document["target_percent"] == 75


def test_patches_heed_if_match(own_cluster: Cluster) -> None:
    """The ETag of an answer is good for one change."""
    ask = own_cluster.request
    tag = ask("GET", "/v1/settings").headers["etag"]
    body = {"priority_classes": {"batch": 7}}
    done = ask("PATCH", "/v1/settings", body, headers={"If-Match": tag})
    assert done.status == 200 and done.headers["etag"] != tag
    again = ask("PATCH", "/v1/settings", {"target_percent": 50}, headers={"If-Match": tag})
    assert again.status == 412
    assert ask("PATCH", "/v1/settings", {"target": 50}).status == 400
