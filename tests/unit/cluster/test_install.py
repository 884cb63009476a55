"""Steps of an installation, units with this one's paths, podman's settings for a stock host."""

import re
import tomllib
from pathlib import Path

import pytest

from ozymandias.cluster import install, units
from ozymandias.cluster.install import Command, File, Target
from ozymandias.runtime import containers_conf
from ozymandias.runtime.containers_conf import HostFacts
from ozymandias.store.tokens import hashed, parse_tokens


def stock(*runtimes: str) -> HostFacts:
    """Debian 12 as it is installed: cgroup v2, systemd, root that may raise limits."""
    return HostFacts(
        cgroups="v2",
        has_systemd=True,
        can_raise_limits=True,
        open_files_max=1048576,
        processes_max=-1,
        runtimes=runtimes,
    )


@pytest.mark.parametrize(
    ("runtimes", "chosen"), [(("crun", "runc"), "crun"), (("crun",), "crun"), (("runc",), "runc")]
)
def test_a_stock_debian_12(runtimes: tuple[str, ...], chosen: str) -> None:
    """systemd manages the cgroups, podman's own limits stay, crun is preferred."""
    settings = containers_conf.decide(stock(*runtimes))
    assert (settings.runtime, settings.cgroup_manager, settings.ulimits) == (chosen, "systemd", ())
    document = tomllib.loads(containers_conf.render(settings))
    assert "default_ulimits" not in document["containers"]
    assert document["engine"]["runtime"] == chosen
    assert document["engine"]["cgroup_manager"] == "systemd"
    assert document["network"] == {"network_backend": "netavark"}


def test_an_image_is_made_for_a_stock_host() -> None:
    """Whatever the machine that makes it is like; and it carries neither token nor commands."""
    target = Target(root=Path("/srv/image"), bin_dir=Path("/opt/ozymandias/bin"))
    steps = list(install.plan(target))
    files = {step.path: step for step in steps if isinstance(step, File)}
    assert 'runtime = "crun"' in files[install.SETTINGS / "containers.conf"].text
    assert install.SETTINGS / "tokens" not in files
    assert not any(isinstance(step, Command) for step in steps)


def test_this_host_gets_a_token_and_a_group() -> None:
    """A new token each time it is planned; it is only written where there is none."""
    target = Target(bin_dir=Path("/opt/ozymandias/bin"))
    tokens = {
        step.text: step
        for _ in range(2)
        for step in install.plan(target)
        if isinstance(step, File) and step.path.name == "tokens"
    }
    assert len(tokens) == 2
    assert all(step.only_if_absent and step.mode == 0o600 for step in tokens.values())
    first = next(iter(install.plan(target)))
    assert isinstance(first, Command)
    assert first.words == ("groupadd", "--system", "--force", "ozymandias")


def test_of_a_token_the_host_keeps_the_hash(tmp_path: Path) -> None:
    """The token is told to who installs, when it is made and never again."""
    steps = [s for s in install.plan(Target(bin_dir=tmp_path)) if isinstance(s, File) and s.secret]
    (done,) = install.carry_out(steps, tmp_path)
    written = tmp_path / install.SETTINGS / "tokens"
    assert done.secret and done.secret not in written.read_text() + repr(steps) + repr(done)
    assert done.secret not in str(done.document())
    (known,) = parse_tokens(written.read_text())
    assert known == hashed(done.secret)
    assert written.stat().st_mode & 0o777 == 0o600
    for dry_run in (True, False):
        (again,) = install.carry_out(steps, tmp_path, dry_run=dry_run)
        assert (again.outcome, again.secret) == ("kept", "")


def test_what_is_installed_is_what_is_removed() -> None:
    """All but the host's own: settings, token, state."""
    target = Target(root=Path("/srv/image"), bin_dir=Path("/opt/ozymandias/bin"))
    written = {step.path for step in install.plan(target) if isinstance(step, File)}
    removed = {step.path for step in install.plan_removal(target) if not isinstance(step, Command)}
    assert written - removed == {install.SETTINGS / "ozymandias.toml"}
    assert removed <= written


def test_our_own_processes_are_the_last_to_be_killed_for_memory() -> None:
    """Every service asks for a score below 0, where pods have one above it."""
    for unit in units.units(Path("/opt/ozymandias/bin")):
        if unit.path.suffix == ".service":
            found = re.search(r"^OOMScoreAdjust=(-?\d+)$", unit.text, re.MULTILINE)
            assert found and int(found[1]) < 0, unit.path.name


@pytest.mark.parametrize(
    ("bin_dir", "start"),
    [
        ("/opt/ozymandias/bin", "ExecStart=/opt/ozymandias/bin/ozymandias "),
        ("/srv/100% mine/bin", r"ExecStart=/srv/100%%\x20mine/bin/ozymandias "),
    ],
)
def test_units_name_the_programs(bin_dir: str, start: str) -> None:
    """Characters that mean something to systemd are written so that they don't."""
    [daemon] = [u for u in units.units(Path(bin_dir)) if u.path.name == "ozymandias.service"]
    assert start in daemon.text
    assert "ProtectHome=yes" in daemon.text


@pytest.mark.parametrize("home", ["/home" + "/alice/bin", "/root" + "/ozymandias/bin"])
def test_programs_in_a_home_can_be_read(home: str) -> None:
    """The wall around homes would hide the programs themselves."""
    text = units.render(units.template("ozymandias-ingress.service"), Path(home))
    assert "ProtectHome=read-only" in text
    assert "ProtectHome=yes" not in text


def test_pods_outlive_the_daemon() -> None:
    """systemd ends the daemon's own process and nothing else, however often it starts again."""
    text = units.template("ozymandias.service")
    for line in ("KillMode=process", "Type=notify", "WatchdogSec=30", "StartLimitIntervalSec=0"):
        assert f"\n{line}\n" in text
