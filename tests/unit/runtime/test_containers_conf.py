"""The containers.conf fits the host."""

import tomllib

import pytest

from ozymandias.model.record import replace
from ozymandias.runtime.containers_conf import HostFacts, decide, gather, render

MODERN = HostFacts(
    cgroups="v2",
    has_systemd=True,
    can_raise_limits=True,
    open_files_max=1048576,
    processes_max=-1,
    runtimes=("crun", "runc"),
)


def test_modern_host_keeps_podmans_own_choices() -> None:
    """With systemd, cgroup v2 and all rights: crun, systemd, no limits of ours."""
    settings = decide(MODERN)
    assert (settings.runtime, settings.cgroup_manager, settings.ulimits) == ("crun", "systemd", ())


@pytest.mark.parametrize("cgroups", ["hybrid", "v1"])
def test_old_cgroups_need_runc(cgroups: str) -> None:
    """crun refuses hybrid cgroups, so runc is used."""
    assert decide(replace(MODERN, cgroups=cgroups)).runtime == "runc"  # type: ignore[arg-type]


def test_no_systemd_means_cgroupfs() -> None:
    """Without systemd podman manages cgroups itself."""
    assert decide(replace(MODERN, has_systemd=False)).cgroup_manager == "cgroupfs"


def test_limits_never_exceed_what_may_be_set() -> None:
    """Without CAP_SYS_RESOURCE the container's limits stay within our own hard ones."""
    facts = replace(MODERN, can_raise_limits=False, open_files_max=20000, processes_max=-1)
    assert decide(facts).ulimits == ("nofile=20000:20000", "nproc=16384:16384")


def test_rendered_file_is_toml_with_a_log_cap() -> None:
    """What is rendered for this very host parses, caps logs and sets no DNS server."""
    parsed = tomllib.loads(render(decide(gather())))
    assert parsed["containers"]["log_size_max"] > 0
    assert parsed["network"]["network_backend"] == "netavark"
    assert "dns_servers" not in parsed["containers"]
