"""The doctor's judgments: facts in, verdict and remedy out."""

import pytest

from ozymandias.cluster import doctor
from ozymandias.runtime.containers_conf import HostFacts


@pytest.mark.parametrize(
    ("version", "verdict", "word"),
    [
        (None, "fail", "not installed"),
        ((3, 4, 23), "warn", "trying out: a watch can go back"),
        ((3, 4, 38), "warn", "trying out"),
        ((3, 5, 1), "fail", "lose agreement"),
        ((3, 5, 23), "warn", "trying out"),
        ((3, 5, 33), "ok", "3.5.33"),
        ((3, 6, 2), "warn", "trying out"),
        ((3, 6, 14), "ok", "3.6.14"),
        ((3, 7, 3), "ok", "3.7.3"),
    ],
)
def test_etcd_is_judged_by_its_version(
    version: tuple[int, ...] | None, verdict: str, word: str
) -> None:
    """What is wrong with a version is said, and which one to use instead."""
    check = doctor.etcd(version)
    assert check.verdict == verdict
    assert word in check.detail
    assert check.remedy or verdict == "ok"


def test_a_fixed_version_is_not_blamed() -> None:
    """Only the faults that a version has are told."""
    assert "watch can go back" not in doctor.etcd((3, 4, 31)).detail
    assert "keep-alive can succeed" in doctor.etcd((3, 4, 31)).detail
    assert doctor.etcd((3, 4, 38)).detail.endswith("trying out")


def test_podman_must_not_be_older_than_what_is_tested() -> None:
    """Debian 12's podman is the oldest that will do."""
    assert doctor.podman((4, 3, 1)).verdict == "ok"
    assert doctor.podman((5, 8, 0)).verdict == "ok"
    assert doctor.podman((3, 0, 1)).verdict == "fail"
    assert doctor.podman(None).verdict == "fail"


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
    checks = {check.name: check for check in doctor.containers(facts)}
    assert checks["OCI runtime"].verdict == "ok"
    assert checks["cgroups"].verdict == "warn"
    assert "nofile=1024:1024" in checks["limits"].detail


@pytest.mark.parametrize(
    ("free", "verdict"), [(2**34, "ok"), (2**31, "warn"), (2**28, "fail"), (0, "fail")]
)
def test_little_disk_is_told(free: int, verdict: str) -> None:
    """Too little to work with is a failure, a little is a warning."""
    assert doctor.disk(free).verdict == verdict


def test_missing_tools_name_their_packages() -> None:
    """The remedy can be typed as it stands."""
    check = doctor.tools(lambda name: name not in {"nft", "mkfs.ext4"})
    assert check.verdict == "fail"
    assert check.remedy == "apt-get install nftables e2fsprogs"
    assert doctor.tools(lambda name: True).verdict == "ok"


def test_the_worst_verdict_counts() -> None:
    """One failure makes the whole a failure."""
    ok, warn, fail = (doctor.Check(name="x", verdict=v, detail="") for v in ("ok", "warn", "fail"))
    assert doctor.worst([]) == "ok"
    assert doctor.worst([ok, warn]) == "warn"
    assert doctor.worst([fail, ok, warn]) == "fail"
