"""The kernel's log tells which container was out of memory, and when."""

import time
from pathlib import Path

from ozymandias.runtime.kernel_log import KernelLog

CONTAINER = "ab" * 32
OTHER = "cd" * 32


def record(container: str, seconds_ago: float) -> bytes:
    stamp = int((time.clock_gettime(time.CLOCK_MONOTONIC) - seconds_ago) * 1e6)
    text = (
        f"6,100,{stamp},-;oom-kill:constraint=CONSTRAINT_MEMCG,nodemask=(null),"
        f"cpuset=libpod-{OTHER},mems_allowed=0,oom_memcg=/libpod_parent/x/libpod-{container},"
        f"task_memcg=/libpod_parent/x/libpod-{container},task=dd,pid=1,uid=0\n"
    )
    return text.encode()


def test_a_kill_counts_from_the_start_of_the_run(tmp_path: Path) -> None:
    """A kill before the container's present run is not held against it."""
    file = tmp_path / "kmsg"
    file.write_bytes(record(CONTAINER, seconds_ago=60.0))
    log = KernelLog(file)
    assert log.out_of_memory(CONTAINER, time.time() - 100)
    assert not log.out_of_memory(CONTAINER, time.time() - 10)
    log.close()


def test_only_the_cgroup_that_ran_out_is_blamed(tmp_path: Path) -> None:
    """Another container's name elsewhere in the record means nothing."""
    file = tmp_path / "kmsg"
    file.write_bytes(record(CONTAINER, seconds_ago=1.0))
    log = KernelLog(file)
    assert not log.out_of_memory(OTHER, 0.0)
    log.close()


def test_without_a_log_nothing_is_claimed(tmp_path: Path) -> None:
    """Where the log can't be read no container is called out of memory."""
    assert not KernelLog(tmp_path / "absent").out_of_memory(CONTAINER, 0.0)
