"""Tests of real things mostly wait: run in two halves at once, each a pytest of its own.

    python -m tests.halves PYTEST-ARGUMENT...

Files are divided by how long they take, the same way every time: a test runs after the same others
in every run. Lines are printed as they come, with the number of their half. An interrupted run
waits until both halves have removed what they made.
"""

import signal
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Iterable

# Seconds on two quiet cores; of other files every test counts as one.
SECONDS = {
    "tests/cluster/test_changes.py": 30,
    "tests/cluster/test_control_plane.py": 120,
    "tests/cluster/test_crowds.py": 30,
    "tests/cluster/test_demo.py": 35,
    "tests/cluster/test_disk_full.py": 25,
    "tests/cluster/test_exclusive.py": 25,
    "tests/cluster/test_hosts_control_plane.py": 40,
    "tests/cluster/test_hosts_exclusive.py": 60,
    "tests/cluster/test_hosts_join.py": 80,
    "tests/cluster/test_hosts_network.py": 50,
    "tests/cluster/test_hosts_partition.py": 45,
    "tests/cluster/test_hosts_power.py": 30,
    "tests/cluster/test_hosts_themselves.py": 30,
    "tests/cluster/test_hosts_upkeep.py": 20,
    "tests/cluster/test_leftovers.py": 10,
    "tests/cluster/test_local.py": 75,
    "tests/cluster/test_node_loss.py": 50,
    "tests/cluster/test_path.py": 30,
    "tests/cluster/test_peers_race.py": 17,
    "tests/docs/test_commands.py": 50,
    "tests/docs/test_pages.py": 5,
    "tests/integration/api/test_made_up.py": 80,
    "tests/integration/cluster/test_founding.py": 110,
    "tests/integration/cluster/test_founding_upkeep.py": 170,
    "tests/integration/edge/test_ingress_lost_hosts.py": 30,
    "tests/integration/store/test_machine.py": 45,
}


def divided(files: Iterable[str]) -> tuple[frozenset[str], frozenset[str]]:
    """Each file, given once per test, in one of two halves that take equally long."""
    counted = Counter(files)
    seconds = {file: SECONDS.get(file, tests) for file, tests in counted.items()}
    halves: tuple[set[str], set[str]] = (set(), set())
    for file in sorted(seconds, key=lambda file: (-seconds[file], file)):
        min(halves, key=lambda half: sum(seconds[name] for name in half)).add(file)
    return frozenset(halves[0]), frozenset(halves[1])


def _print(number: int, process: "subprocess.Popen[str]") -> None:
    assert process.stdout is not None
    for line in process.stdout:
        print(f"{number}| {line}", end="", flush=True)


def main(arguments: list[str]) -> int:
    command = [sys.executable, "-m", "pytest", *arguments]
    processes = [
        subprocess.Popen(
            [*command, f"--half={number}"],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
        )
        for number in (1, 2)
    ]

    def interrupt(*_: object) -> None:
        for process in processes:
            process.send_signal(signal.SIGINT)

    signal.signal(signal.SIGINT, signal.SIG_IGN)  # a terminal's Ctrl-C reaches both halves anyway
    signal.signal(signal.SIGTERM, interrupt)
    threads = [
        threading.Thread(target=_print, args=(number, process))
        for number, process in enumerate(processes, 1)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    codes = [process.wait() for process in processes]
    return next((code for code in codes if code), 0)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
