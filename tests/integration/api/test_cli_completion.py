"""Completion as the shells ask for it: live names, quickly, and never a complaint."""

import os
import resource
import subprocess
import sys
from pathlib import Path

import pytest

from tests.integration.api.rig import Cluster

CPU_SECONDS_MAX = 0.3  # the machine of a test is busy with others: what it costs is what counts


def complete(cluster: Cluster, *words: str, **environment: str) -> list[str]:
    """The answers to a press of the tab key after the last word, by click's own protocol."""
    ran = subprocess.run(
        [sys.executable, "-m", "ozymandias.cli"],
        env=cluster.environment
        | {
            "COMP_WORDS": " ".join(words),
            "COMP_CWORD": str(len(words) - 1),
            "_OZY_COMPLETE": "bash_complete",
            **environment,
        },
        capture_output=True,
        text=True,
        timeout=20,
    )
    assert ran.stderr == ""
    return [line.partition(",")[2] for line in ran.stdout.splitlines() if line]


@pytest.fixture(scope="module")
def busy(cluster: Cluster) -> Cluster:
    cluster.ozy("submit", cluster.job("web", numInstances=2))
    cluster.ozy("submit", cluster.job("worker"))
    cluster.ozy("submit", cluster.job("till", namespace="shop"))
    return cluster


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ("ozy sta", ["status"]),
        ("ozy status w", ["web", "worker"]),
        ("ozy scale we", ["web"]),
        ("ozy status sh", ["shop/till"]),
        ("ozy -n shop stop ", ["till"]),
        ("ozy logs w", ["web", "worker"]),
        ("ozy logs web", ["web", "web-0", "web-1"]),
        ("ozy why worker-", ["worker-0"]),
        ("ozy exec web", ["web-0", "web-1"]),
        ("ozy events --job wo", ["worker"]),
        ("ozy events --node n", ["n1", "n2", "n3"]),
        ("ozy node kill n", ["n1", "n2", "n3"]),
        ("ozy context use l", ["local"]),
        ("ozy ps --context l", ["local"]),
        ("ozy status web --wa", ["--watch"]),
        ("ozy completion ", ["bash", "zsh", "fish"]),
    ],
)
def test_names_are_live(busy: Cluster, words: str, expected: list[str]) -> None:
    """Commands, options, jobs, instances, nodes and contexts."""
    assert complete(busy, *words.split(" ")) == expected


@pytest.mark.parametrize(
    "environment",
    [
        {"OZY_CONTEXT": "/nonexistent/context.json"},
        {"OZY_API": "http://127.0.0.1:1"},
        {"OZY_API": "http://[::bad"},
        {"OZY_TOKEN": "wrong"},
    ],
)
def test_silence_when_the_cluster_is_away(busy: Cluster, environment: dict[str, str]) -> None:
    """No names, no words, and the shell's prompt stays as it is."""
    assert complete(busy, "ozy", "status", "w", **environment) == []


def test_it_is_quick(busy: Cluster) -> None:
    """A press of the tab key costs less than a third of a second of work."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    for _ in range(3):
        complete(busy, "ozy", "status", "w")
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    spent = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    assert spent / 3 < CPU_SECONDS_MAX


def test_bash_itself(busy: Cluster, tmp_path: Path) -> None:
    """The printed script, sourced by a real bash, completes; file names where files are meant."""
    program = tmp_path / "ozy"
    program.write_text(f'#!/bin/sh\nexec {sys.executable} -m ozymandias.cli "$@"\n')
    program.chmod(0o755)
    script = """
        set -e
        ozy completion bash > completion.bash
        source ./completion.bash
        complete -p ozy
        try() {
            COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1)); COMPREPLY=()
            _ozy_completion ozy "${COMP_WORDS[$COMP_CWORD]}" 2>/dev/null || true
            echo "${COMPREPLY[*]}"
        }
        try ozy status w
        try ozy logs web-
        try ozy plan jo
    """
    ran = subprocess.run(
        ["bash", "-c", script],
        env=busy.environment | {"PATH": f"{tmp_path}:{os.environ['PATH']}"},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=30,
    )
    assert ran.returncode == 0, ran.stderr
    assert ran.stdout.splitlines()[-3:] == ["web worker", "web-0 web-1", ""]
    assert "-F _ozy_completion ozy" in ran.stdout


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_every_shell_gets_its_script(busy: Cluster, shell: str) -> None:
    """Which asks ozy by that shell's protocol."""
    ran = busy.ozy("completion", shell)
    assert (ran.code, ran.err) == (0, "")
    assert f"_OZY_COMPLETE={shell}_complete" in ran.out
