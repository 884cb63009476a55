"""What `ozy down` leaves on the machine, counted before and after: nothing."""

import importlib.util
from pathlib import Path
from types import ModuleType

from tests.cluster.kit import podman, running_cluster, until, web

FILE = Path(__file__).resolve().parents[2] / "deploy" / "setup" / "leftovers.py"


def counting() -> ModuleType:
    """The counting that `make test` ends with."""
    spec = importlib.util.spec_from_file_location("leftovers", FILE)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_down_leaves_nothing_behind() -> None:
    """Processes, containers, pods, volumes, networks, mounts, interfaces and loop devices."""
    leftovers = counting()
    with running_cluster("--nodes=2") as mine:
        volumes = [
            {"path": "/scratch", "space": "2M"},
            {"path": "/kept", "space": "2M", "keep": True},
            {"type": "shared", "path": "/shared", "space": "2M"},
        ]
        mine.submit(web("full", instances=2, volumes=volumes))
        label = f"--filter=label=ozymandias.cluster={mine.local.id}"
        ids = [*podman("ps", "--all", "--quiet", label), *podman("pod", "ls", "--quiet", label)]
        ids = [name[:12] for name in ids]
        assert len(ids) == 6  # two pods, two containers in each
        words = (mine.local.id, str(mine.directory), *ids)

        def ours() -> dict[str, list[str]]:
            found = leftovers.count()
            return {
                kind: those
                for kind, things in found.items()
                if (those := [thing for thing in things if any(word in thing for word in words)])
            }

        during = ours()
        assert {"processes", "containers", "pods", "volumes", "networks", "mounts"} <= set(during)
        assert "loop devices" in during
        mine.ozy("down")
        until(lambda: not ours(), say=str(ours()))
        assert not mine.state_dir.exists()
