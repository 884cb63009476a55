"""Power cuts: work moves in time, returns without running twice, and mass loss waits."""

import time

from tests.cluster.kit import Cluster, Requester, podman, running_cluster, until, web

LEASE_SECONDS = 6.0
HEAL_SECONDS = LEASE_SECONDS + 5.0
BREAKER_LOOK_SECONDS = LEASE_SECONDS  # moving all would begin at once
BREAKER_SECONDS = 60.0


def test_a_lost_node_heals_and_its_return_runs_nothing_twice(cluster: Cluster) -> None:
    """Within TTL + 5 s its work is assigned elsewhere; names and routes forget the dead."""
    cluster.submit(web("moving", instances=5))
    rows = cluster.rows("moving")
    victim = max((row["node"] for row in rows), key=[r["node"] for r in rows].count)
    dead = {row["address"] for row in rows if row["node"] == victim}
    kept = {row["instance"]: row["address"] for row in rows if row["node"] != victim}
    asked = next(node for node in ("n1", "n2", "n3") if node != victim)
    began = time.monotonic()
    assert cluster.ozy("node", "kill", victim)["pods"] >= 1
    killed = time.monotonic() - began

    def healed() -> bool:
        found = cluster.rows("moving", node=asked)
        live = [row for row in found if row["healthy"] and row["node"] != victim]
        return len(live) == 5

    def moved() -> bool:
        return victim not in {row["node"] for row in cluster.rows("moving", node=asked)}

    until(moved, HEAL_SECONDS, say="assigned elsewhere")
    planned = time.monotonic() - began
    until(healed)
    took = time.monotonic() - began
    print(f"node kill took {killed:.1f} s; assigned elsewhere after {planned:.1f} s (TTL 6 s),")
    print(f"all healthy after {took:.1f} s")
    after = {row["instance"]: row["address"] for row in cluster.rows("moving", node=asked)}
    assert kept.items() <= after.items()
    until(lambda: not dead & set(cluster.resolve("moving.default.ozy.internal")))
    assert len(cluster.resolve("moving.default.ozy.internal")) == 5
    assert cluster.ozy("node", "kill", victim, code=1)["title"]
    assert cluster.ozy("node", "kill", "n9", code=4)["node"] == "n9"
    with Requester(cluster, "moving.localhost") as requester:
        requester.more(60)
        assert set(requester.instances) <= set(after)
        # Back again: nothing that runs elsewhere is started, leftovers are removed.
        assert cluster.ozy("node", "start", victim)["ready"]
        owner = f"--filter=label=ozymandias.owner={cluster.local.id}/{victim}"
        until(lambda: not podman("ps", "--all", "--quiet", owner), say="leftovers removed")
        requester.more(20)
    assert requester.failures == []
    # The entries by which it got rid of its leftovers go last; what moved stays where it is.
    until(lambda: len(cluster.rows("moving", node=asked)) == len(after))
    names = {row["instance"]: row["address"] for row in cluster.rows("moving", node=asked)}
    assert names == after
    until(lambda: cluster.nodes(node=asked)[victim]["state"] == "ready")


def is_there(cluster: Cluster, node: str) -> bool:
    """Its daemon is a member of the cluster."""
    try:
        return cluster.request("GET", "/readyz", node=node).status == 200
    except OSError:
        return False


def test_losing_most_nodes_does_not_move_all() -> None:
    """Two of three gone at once: the breaker holds, the one left goes on serving.

    It holds also for a daemon that has seen none of it: the one left is killed and begins anew.
    Leases are renewed at different moments, so one of the two may lapse up to two seconds before
    the other: until then it is the only one, and its work moves. The other's does not.
    """
    with running_cluster() as mine:
        mine.submit(web("spread", instances=3))
        before = {row["instance"]: row["node"] for row in mine.rows("spread")}
        assert set(before.values()) == {"n1", "n2", "n3"}
        killed = time.monotonic()
        both = [mine.spawn("node", "kill", name) for name in ("n2", "n3")]
        for process in both:
            process.communicate(timeout=30)
        assert [process.returncode for process in both] == [0, 0]
        until(lambda: mine.nodes()["n2"]["state"] != "ready" != mine.nodes()["n3"]["state"])
        mine.kill("n1")
        until(lambda: is_there(mine, "n1"))
        deadline = time.monotonic() + BREAKER_LOOK_SECONDS
        while time.monotonic() < deadline:
            found = {row["instance"]: row["node"] for row in mine.rows("spread")}
            moved = [name for name, node in found.items() if before[name] != node]
            assert len(moved) <= 1, (before, found)
            time.sleep(0.2)  # the API has a limit to what one client may ask
        print(f"moved after losing two of three: {moved or 'none'}")
        assert "the node's lease is gone" in mine.text("why", "spread")
        until(lambda: mine.fetch("spread.localhost").status == 200)
        for name in ("n2", "n3"):
            mine.ozy("node", "start", name)
        mine.wait_healthy("spread")
        if time.monotonic() - killed < BREAKER_SECONDS:  # on a slow machine it may be over by now
            assert {row["instance"]: row["node"] for row in mine.rows("spread")} == found


def test_what_does_not_fit_after_a_loss_waits_for_room() -> None:
    """As many as fit are placed, the others pend with a reason, and run when the node returns."""
    with running_cluster("--nodes=2", "--memory=64M") as mine:
        mine.submit(web("tight", instances=4, memory="20M"))
        mine.ozy("node", "kill", "n2")
        until(lambda: mine.status("tight")["pending"] == 1)
        assert mine.status("tight")["healthy"] <= 3
        [waiting] = [row for row in mine.rows("tight") if not row["node"]]
        assert "memory" in waiting["reason"]
        print(f"pending: {waiting['reason']}")
        mine.ozy("node", "start", "n2")
        taken = until(lambda: mine.status("tight")["pending"] == 0)
        print(f"placed {taken:.2f} s after `node start` returned")
        mine.wait_healthy("tight")
