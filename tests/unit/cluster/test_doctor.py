"""The doctor's judgments: facts in, verdict and remedy out."""

from pathlib import Path

import pytest

from ozymandias.cluster import doctor
from ozymandias.cluster.doctor import etcd, machine, storage
from ozymandias.runtime.containers_conf import HostFacts
from ozymandias.store.etcd import MemberStatus

VERSIONS = [
    ((3, 3, 10), "fail", "too old"),
    ((3, 4, 23), "warn", "trying out: a watch can go back"),
    ((3, 4, 38), "warn", "trying out"),
    ((3, 5, 1), "fail", "lose agreement"),
    ((3, 5, 23), "warn", "trying out"),
    ((3, 5, 33), "ok", "3.5.33"),
    ((3, 6, 2), "warn", "trying out"),
    ((3, 6, 14), "ok", "3.6.14"),
    ((3, 7, 3), "ok", "3.7.3"),
]


@pytest.mark.parametrize(("version", "verdict", "word"), VERSIONS)
def test_etcd_is_judged_by_its_version(version: tuple[int, ...], verdict: str, word: str) -> None:
    """What is wrong with a version is said, and which one to use instead."""
    check = etcd.version("etcd", version)
    assert check.verdict == verdict
    assert word in check.detail
    assert check.remedy or verdict == "ok"


def test_a_fixed_version_is_not_blamed() -> None:
    """Only the faults that a version has are told."""
    assert "watch can go back" not in etcd.version("etcd", (3, 4, 31)).detail
    assert "keep-alive can succeed" in etcd.version("etcd", (3, 4, 31)).detail
    assert etcd.version("etcd", (3, 4, 38)).detail.endswith("trying out")


def test_podman_must_not_be_older_than_what_is_tested() -> None:
    """Debian 12's podman is the oldest that will do."""
    assert machine.podman((4, 3, 1)).verdict == "ok"
    assert machine.podman((5, 8, 0)).verdict == "ok"
    assert machine.podman((3, 0, 1)).verdict == "fail"
    assert machine.podman(None).verdict == "fail"


def test_sshd_is_judged_by_what_the_kernel_would_do_to_it() -> None:
    """Spared, or a warning with what would help; nothing is said where there is none."""
    assert list(machine.secure_shell([])) == []
    (spared,) = machine.secure_shell([-1000])
    (exposed,) = machine.secure_shell([-1000, 0])
    assert (spared.verdict, exposed.verdict) == ("ok", "warn")
    assert "oom_score_adj is 0" in exposed.detail and "OOMScoreAdjust=-1000" in exposed.remedy


def test_the_sshd_of_the_host_is_found_and_no_other(tmp_path: Path) -> None:
    """Neither that of a pod, nor the sessions of those who are logged in."""
    for pid, name, parent, namespace, score in (
        (1, "systemd", 0, "host", 0),
        (50, "sshd", 1, "host", -1000),
        (60, "sshd", 50, "host", 0),
        (70, "sshd", 1, "pod", 900),
        (80, "bash", 60, "host", 0),
    ):
        directory = tmp_path / str(pid)
        (directory / "ns").mkdir(parents=True)
        (directory / "ns" / "pid").symlink_to(namespace)
        (directory / "comm").write_text(f"{name}\n")
        (directory / "stat").write_text(f"{pid} ({name}) S {parent} 1 1\n")
        (directory / "oom_score_adj").write_text(f"{score}\n")
    (tmp_path / "self").symlink_to("1")
    assert machine._listening_shells(tmp_path) == [-1000]


def test_the_hosts_layout_is_explained() -> None:
    """Old cgroups and fixed limits are worth a warning, not a refusal."""
    facts = HostFacts(
        cgroups="hybrid",
        has_systemd=False,
        can_raise_limits=False,
        open_files_max=1024,
        processes_max=512,
        runtimes=("runc",),
    )
    checks = {check.name: check for check in machine.containers(facts)}
    assert checks["OCI runtime"].verdict == "ok"
    assert checks["cgroups"].verdict == "warn"
    assert "unified_cgroup_hierarchy" in checks["cgroups"].remedy
    assert "nofile=1024:1024" in checks["limits"].detail


@pytest.mark.parametrize(
    ("files", "is_missing"),
    [
        ({"cgroup.controllers": "cpu memory pids"}, False),
        ({"cgroup.controllers": "cpu pids"}, True),
        ({"memory/tasks": ""}, False),
        ({"cpu/tasks": ""}, True),
    ],
)
def test_a_kernel_without_memory_limits_will_not_do(
    tmp_path: Path, files: dict[str, str], is_missing: bool
) -> None:
    """Without the memory controller no limit is kept, with either layout of cgroups."""
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    checks = list(machine.memory_controller(tmp_path))
    assert [check.verdict for check in checks] == ["fail"] * is_missing
    assert all("cgroup_enable=memory" in check.remedy for check in checks)


@pytest.mark.parametrize(
    ("free", "verdict"), [(2**34, "ok"), (2**31, "warn"), (2**28, "fail"), (0, "fail")]
)
def test_little_disk_is_told(free: int, verdict: str) -> None:
    """Too little to work with is a failure, a little is a warning."""
    assert storage.disk(Path("/var/lib"), free).verdict == verdict


@pytest.mark.parametrize(
    ("hard", "verdict"), [(-1, "ok"), (65536, "ok"), (1024, "warn"), (256, "fail")]
)
def test_few_open_files_are_told(hard: int, verdict: str) -> None:
    """A limit that starves connections is told before they fail."""
    assert machine.open_files(hard).verdict == verdict


def test_missing_tools_name_their_packages() -> None:
    """The remedy can be typed as it stands."""
    check = machine.tools(lambda name: name not in {"nft", "mkfs.ext4"})
    assert check.verdict == "fail"
    assert check.remedy == "apt-get install nftables e2fsprogs"
    assert machine.tools(lambda name: True).verdict == "ok"


def test_one_silent_member_of_three_is_a_warning() -> None:
    """A majority serves; the remedy says where to look."""
    well = [
        MemberStatus(endpoint=f"m{n}:2379", version="3.5.33", leader_id=7, member_id=n)
        for n in (1, 2)
    ]
    silent = MemberStatus(endpoint="m3:2379", problem="UNAVAILABLE: connection refused")
    checks = list(etcd.judge([*well, silent]))
    assert [check.verdict for check in checks] == ["ok", "ok", "warn"]
    assert "systemctl status etcd" in checks[-1].remedy


@pytest.mark.parametrize(
    ("there", "verdicts"), [(100.0, []), (103.0, []), (170.0, ["warn"]), (900.0, ["fail"])]
)
def test_clocks_far_apart_are_told(there: float, verdicts: list[str]) -> None:
    """Seconds are a warning, minutes a failure; nothing is said while they agree."""
    from email.utils import formatdate

    checks = list(etcd.clock("clock", formatdate(there, usegmt=True), 100.0))
    assert [check.verdict for check in checks] == verdicts
    assert not list(etcd.clock("clock", "nonsense", 100.0))


@pytest.mark.parametrize(
    ("alive", "verdicts"),
    [
        ({}, []),
        ({"n1": True, "n2": True}, []),
        ({"n1": False, "n2": False}, ["fail"]),
        ({"n1": True, "n2": True, "n3": False}, ["warn"]),
        ({"n1": True, "n2": True, "n3": True, "n4": False}, ["ok"]),
    ],
)
def test_somebody_has_to_schedule(alive: dict[str, bool], verdicts: list[str]) -> None:
    """Where some nodes do not, three or more should; where all do there is nothing to say."""
    assert [check.verdict for check in etcd.schedulers(alive)] == verdicts


def test_the_worst_verdict_counts() -> None:
    """One failure makes the whole a failure."""
    ok, warn, fail = (doctor.Check(name="x", verdict=v, detail="") for v in ("ok", "warn", "fail"))
    assert doctor.worst([]) == "ok"
    assert doctor.worst([ok, warn]) == "warn"
    assert doctor.worst([fail, ok, warn]) == "fail"
    assert doctor.count([fail, ok, warn]) == "3 checks: 1 ok, 1 warning, 1 failure"
