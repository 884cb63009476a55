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

# Seconds, measured with both halves at once beside other work (a load of 12 to 20 on two cores):
# what counts is how they compare. Of other files every test counts as a tenth of a second.
SECONDS = {
    "tests/cluster/test_changes.py": 73,
    "tests/cluster/test_control_plane.py": 234,
    "tests/cluster/test_crowds.py": 54,
    "tests/cluster/test_demo.py": 43,
    "tests/cluster/test_disk_full.py": 55,
    "tests/cluster/test_exclusive.py": 42,
    "tests/cluster/test_failing_jobs.py": 35,
    "tests/cluster/test_hosts_control_plane.py": 21,
    "tests/cluster/test_hosts_exclusive.py": 54,
    "tests/cluster/test_hosts_join.py": 84,
    "tests/cluster/test_hosts_network.py": 36,
    "tests/cluster/test_hosts_partition.py": 35,
    "tests/cluster/test_hosts_power.py": 22,
    "tests/cluster/test_hosts_themselves.py": 19,
    "tests/cluster/test_hosts_upkeep.py": 18,
    "tests/cluster/test_leftovers.py": 22,
    "tests/cluster/test_local.py": 169,
    "tests/cluster/test_node_loss.py": 142,
    "tests/cluster/test_path.py": 84,
    "tests/cluster/test_peers_race.py": 50,
    "tests/docs/test_commands.py": 119,
    "tests/docs/test_pages.py": 6,
    "tests/integration/api/test_api.py": 12,
    "tests/integration/api/test_bad_moments.py": 21,
    "tests/integration/api/test_cli.py": 29,
    "tests/integration/api/test_cli_again.py": 15,
    "tests/integration/api/test_cli_completion.py": 9,
    "tests/integration/api/test_cli_logs.py": 23,
    "tests/integration/api/test_cli_terminal.py": 18,
    "tests/integration/api/test_daemon_process.py": 8,
    "tests/integration/api/test_guards.py": 21,
    "tests/integration/api/test_made_up.py": 211,
    "tests/integration/api/test_nodes.py": 25,
    "tests/integration/api/test_streams.py": 12,
    "tests/integration/cluster/test_doctor_host.py": 17,
    "tests/integration/cluster/test_doctor_local.py": 23,
    "tests/integration/cluster/test_founding.py": 200,
    "tests/integration/cluster/test_founding_upkeep.py": 272,
    "tests/integration/cluster/test_install.py": 23,
    "tests/integration/cluster/test_supervisor.py": 10,
    "tests/integration/edge/test_dns_coredns.py": 32,
    "tests/integration/edge/test_dns_processes.py": 12,
    "tests/integration/edge/test_dns_responder.py": 35,
    "tests/integration/edge/test_ingress_bodies.py": 17,
    "tests/integration/edge/test_ingress_lost_hosts.py": 71,
    "tests/integration/edge/test_ingress_streams.py": 10,
    "tests/integration/edge/test_processes.py": 34,
    "tests/integration/podman/test_contract.py": 35,
    "tests/integration/podman/test_faults.py": 16,
    "tests/integration/podman/test_guard.py": 50,
    "tests/integration/podman/test_machine.py": 95,
    "tests/integration/podman/test_pods.py": 44,
    "tests/integration/podman/test_ports.py": 19,
    "tests/integration/podman/test_streams.py": 23,
    "tests/integration/podman/test_volumes.py": 49,
    "tests/integration/store/test_contract.py": 15,
    "tests/integration/store/test_differential.py": 11,
    "tests/integration/store/test_faults.py": 47,
    "tests/integration/store/test_machine.py": 65,
    "tests/integration/store/test_security.py": 23,
    "tests/integration/test_bench_scale.py": 30,
}


def divided(files: Iterable[str]) -> tuple[frozenset[str], frozenset[str]]:
    """Each file, given once per test, in one of two halves that take equally long."""
    counted = Counter(files)
    seconds = {file: SECONDS.get(file, tests / 10) for file, tests in counted.items()}
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
