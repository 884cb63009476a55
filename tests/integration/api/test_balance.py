"""Drift and rebalance through `ozy` and the API."""

import json
from typing import Any

from tests.integration.api.rig import Cluster, until


def healthy(cluster: Cluster, job: str) -> list[str]:
    found = cluster.request("GET", f"/v1/jobs/default/{job}").document
    return sorted(i["node"] for i in found["instances"] if i["healthy"])


def crowd(cluster: Cluster) -> None:
    """Two instances of a job share n1, as the other nodes are closed."""
    for name in ("n2", "n3"):
        assert cluster.ozy("node", "cordon", name).code == 0
    assert cluster.ozy("submit", cluster.job("web", numInstances=2)).code == 0
    for name in ("n2", "n3"):
        assert cluster.ozy("node", "uncordon", name).code == 0


def test_a_rebalance_is_shown_and_done(own_cluster: Cluster) -> None:
    """Moves and gain before anything is changed; then done, told, and nothing is left to do."""
    crowd(own_cluster)
    shown = own_cluster.ozy("rebalance", "--dry-run")
    assert shown.code == 0, shown.err
    assert "web-1 n1 -> n" in shown.out and "n1 has 2 of web, and n" in shown.out
    assert "pairs of a job that share a node" in shown.out and "1 move." in shown.out
    assert healthy(own_cluster, "web") == ["n1", "n1"]
    done = own_cluster.ozy("rebalance", "--timeout", "50")
    assert done.code == 0, done.out + done.err
    assert "rebalanced: no move is worth it any more." in done.out
    assert len(set(healthy(own_cluster, "web"))) == 2
    assert "No move is worth it." in own_cluster.ozy("rebalance").out
    until(lambda: "rebalance.asked" in own_cluster.ozy("events").out, 10)
    until(lambda: "moved from n1" in own_cluster.ozy("events").out, 10)


def test_a_suggestion_is_told_and_nothing_moves(own_cluster: Cluster) -> None:
    """The setting is to suggest: `ozy drift` says what could be done."""
    crowd(own_cluster)
    found = own_cluster.ozy("drift")
    assert "Every job has what it prefers." in found.out
    assert "Suggested: `ozy rebalance` would make 1 move" in found.out
    assert own_cluster.ozy("settings", "set", "--rebalance", "off").code == 0
    assert "Suggested" not in own_cluster.ozy("drift").out


def test_what_is_given_up_is_listed(own_cluster: Cluster) -> None:
    """With the reason and the time; a label that appears makes it possible."""
    file = own_cluster.job("web", placement={"prefer": ["role == infra"]})
    assert own_cluster.ozy("submit", file).code == 0
    shown = own_cluster.ozy("drift")
    assert "role == infra" in shown.out and "no node that it may be on has that" in shown.out
    line = "drift      1 instance does without what the job prefers; `ozy drift` lists it"
    assert line in own_cluster.ozy("status").out

    def rows() -> Any:
        return own_cluster.ozy("drift", "-o", "json").document["items"]

    noted = until(lambda: rows()[0]["since"] and rows()[0], 20)
    assert (noted["kind"], noted["instances"], noted["to"]) == ("prefer", ["web-0"], None)
    other = "n2" if noted["node"] != "n2" else "n3"
    assert own_cluster.ozy("node", "label", other, "role=infra").code == 0
    assert rows()[0]["to"] == other
    assert "would make 1 move, which comes unasked as well;" in own_cluster.ozy("drift").out
    assert own_cluster.ozy("rebalance", "--max-moves", "1", "--timeout", "50").code == 0
    assert healthy(own_cluster, "web") == [other]
    until(lambda: not rows(), 20)
    assert "drift" not in own_cluster.ozy("status").out
    assert own_cluster.ozy("status", "-o", "json").document["drifting"] == 0


def test_no_move_begins_in_a_freeze(own_cluster: Cluster) -> None:
    """It is asked for, said to wait, and can be taken back; nobody waits for its end."""
    crowd(own_cluster)
    frozen = own_cluster.ozy("freeze", "now", "--for", "1h", "--reason", "a demo")
    assert frozen.code == 0, frozen.err
    asked = own_cluster.ozy("rebalance", "--timeout", "50")
    assert asked.code == 0 and "No move begins: frozen by now" in asked.out
    assert "To have them at once: `ozy rebalance` with --override-freeze REASON." in asked.out
    assert healthy(own_cluster, "web") == ["n1", "n1"]
    assert "no more moves begin" in own_cluster.ozy("rebalance", "--stop").out
    assert own_cluster.ozy("rebalance", "--stop").out == "No rebalance is under way.\n"
    assert healthy(own_cluster, "web") == ["n1", "n1"]


def test_moves_begin_in_a_freeze_for_a_reason_that_is_recorded(own_cluster: Cluster) -> None:
    """In the event and in the audit; without a reason, or with none to make, it is bad usage."""
    crowd(own_cluster)
    assert own_cluster.ozy("freeze", "now", "--for", "1h", "--reason", "a demo").code == 0
    assert "No move begins" in own_cluster.ozy("rebalance", "--detach").out
    for wrong in (("", "--detach"), (" ", "--detach"), ("why", "--dry-run"), ("why", "--stop")):
        refused = own_cluster.ozy("rebalance", "--override-freeze", *wrong)
        assert refused.code == 2 and "--override-freeze" in refused.err, refused.err
    done = own_cluster.ozy("rebalance", "--override-freeze", "n1 is hot", "--timeout", "50")
    assert done.code == 0 and "No move begins" not in done.out, done.out + done.err
    assert "rebalanced" in done.out
    assert len(set(healthy(own_cluster, "web"))) == 2
    words = "not waiting for the end of a freeze (n1 is hot)"
    until(lambda: words in own_cluster.ozy("events").out, 10)
    lines = [json.loads(line) for line in own_cluster.audit_file.read_text().splitlines()]
    (line,) = [line for line in lines if line["what"] == "rebalance"][-1:]
    assert line["after"]["override_freeze"] == "n1 is hot"
