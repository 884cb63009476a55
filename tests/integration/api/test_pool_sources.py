"""Pools whose source is a key of etcd or a command: a real daemon, its settings and a real etcd.

The daemon's node takes no work, so what a pool wants has no place; how many it wants is what its
source decides.
"""

import json
from pathlib import Path
from typing import Any

from tests.integration.api.rig import until
from tests.integration.api.test_daemon_process import Process, lonely

LISTED = "/bin/echo 3"


def submit(daemon: Process, name: str, **rules: object) -> None:
    autoscale = {"min": 0, "max": 4, "step": 2, "every": 1} | rules
    container = {"image": "demo", "memory": "64M"}
    document = {"name": name, "containers": {"app": container}, "autoscale": autoscale}
    found = daemon.document("/v1/jobs", post=json.dumps(document).encode())
    assert found.get("created"), found


def row(daemon: Process, name: str) -> Any:
    rows = daemon.document("/v1/pools")["items"]
    return next(row for row in rows if row["pool"] == name)


def says(daemon: Process, name: str, wanted: int, words: str) -> bool:
    found = row(daemon, name)
    return found["wanted"] == wanted and words in found["reason"]


def test_a_pool_follows_a_key_of_etcd(tmp_path: Path) -> None:
    """Its number is what is pending; no number, too much or nothing there changes nothing."""
    with lonely(tmp_path) as daemon:
        follow_a_key(daemon)


def follow_a_key(daemon: Process) -> None:
    submit(daemon, "agents", pending={"key": "/queues/builds", "path": "waiting"})
    until(lambda: says(daemon, "agents", 0, "it stays as it is: there is no such key"), 20)

    def put(value: str) -> None:
        daemon.etcd.ctl("put", "/queues/builds", value)

    put(json.dumps({"waiting": 7}))
    until(lambda: says(daemon, "agents", 2, "7 pending"), 20)
    assert row(daemon, "agents")["pending"] == 7
    for value, words in (
        ("soon", "the answer is not JSON"),
        (json.dumps({"waiting": "many"}), "the answer is not a number at waiting"),
        (json.dumps({"running": 7}), "the answer has nothing at waiting"),
        (json.dumps({"waiting": 0, "x": "x" * 2**16}), "the value is over 64 KiB"),
    ):
        put(value)
        until(lambda words=words: says(daemon, "agents", 2, words), 20)
        assert row(daemon, "agents")["pending"] is None
    put(json.dumps({"waiting": 0, "x": "x" * (2**16 - 30)}))  # just within
    until(lambda: says(daemon, "agents", 0, "nothing is pending"), 20)
    put(json.dumps({"waiting": 1}))
    until(lambda: says(daemon, "agents", 2, "1 pending"), 20)
    daemon.etcd.ctl("del", "/queues/builds")
    until(lambda: says(daemon, "agents", 2, "there is no such key"), 20)


def test_a_pool_follows_a_command_that_the_node_lists(tmp_path: Path) -> None:
    """From the line in the node's settings to a step; what is not listed there is not run."""
    with lonely(tmp_path, f'[autoscale]\n            commands = ["{LISTED}"]') as daemon:
        submit(daemon, "listed", pending={"command": LISTED})
        submit(daemon, "other", pending={"command": "/bin/echo 4"})
        until(lambda: says(daemon, "listed", 2, "3 pending"), 20)
        assert row(daemon, "listed")["pending"] == 3
        words = "on lonely the command is not listed under [autoscale] commands, word for word"
        until(lambda: says(daemon, "other", 0, f"it stays as it is: {words}"), 20)
        assert row(daemon, "other")["pending"] is None
