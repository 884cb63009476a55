"""Everything that may happen to a cluster of hosts: one method per kind, each with its way back.

A kind is drawn with a host and dice of its own. It begins, and returns how it heals and after how
long; or None if it can't happen there now. Programs that it kills are held down until it heals, and
are started again by the keeper, as systemd would. Hosts that are off are left alone by all others.
"""

import random
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass

from ozymandias.core.pressure import CLEAR_SECONDS
from tests.chaos import processes
from tests.chaos.cluster import DISK, LEASE_SECONDS, ChaosCluster
from tests.cluster.kit import BUSYBOX, DEMO, shell

SHORT = (0.5, LEASE_SECONDS / 3)  # nobody should notice
LONG = (LEASE_SECONDS + 2.0, LEASE_SECONDS * 3.0)  # the lease is lost
BELOW = "/ozymandias/v1/"
GARBAGE = (
    ("jobs/default/ghost", "not a job"),
    ("jobs/too/many/parts", "{}"),
    ("nodes/ghost", "\\xff\\x00"),
    ("ledger/ghost", "[]"),
    ("assignments/ghost/default/ghost", '{"format": 99}'),
    ("status/ghost/default/ghost", "null"),
    ("versions/default/ghost/not-a-number", "1"),
    ("unknown/kind", "from the future"),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Begun:
    """A fault that holds: what it did, how it ends, and when that is due."""

    what: str
    heal: Callable[[], object]
    seconds: float
    # Ingresses that can't be expected to answer meanwhile, for they were hit themselves.
    ingresses: tuple[str, ...] = ()
    lingers: float = 0.0  # seconds for which a node is still wary of it, healed as it is


Fault = Callable[[str, random.Random], Begun | None]


class Faults:
    def __init__(self, cluster: ChaosCluster) -> None:
        self._cluster = cluster

    def kinds(self) -> dict[str, Fault]:
        """By name, in a fixed order: the dice choose among them."""
        return {
            name.removeprefix("do_").replace("_", "-"): getattr(self, name)
            for name in sorted(dir(self))
            if name.startswith("do_")
        }

    # Programs -------------------------------------------------------------------------------------

    def _kill(self, host: str, name: str, seconds: float, said: str = "") -> Begun | None:
        cluster = self._cluster
        if (host, name) in cluster.held or not cluster.is_running(host, name):
            return None
        cluster.held.add((host, name))
        cluster.kill_program(host, name)
        return Begun(
            what=said or f"{name} of {host} killed",
            heal=lambda: cluster.held.discard((host, name)),
            seconds=seconds,
            ingresses=(host,) if name == "ingress" else (),
        )

    def _pause(self, host: str, name: str, seconds: float, said: str = "") -> Begun | None:
        cluster = self._cluster
        if (host, name) in cluster.held or not cluster.is_running(host, name):
            return None
        process = cluster[host].processes[name]
        process.pause()
        return Begun(
            what=said or f"{name} of {host} stopped (SIGSTOP)",
            heal=process.resume,
            seconds=seconds,
            ingresses=(host,) if name == "ingress" else (),
        )

    def do_daemon_killed(self, host: str, dice: random.Random) -> Begun | None:
        return self._kill(host, "daemon", dice.uniform(*SHORT))

    def do_daemon_away(self, host: str, dice: random.Random) -> Begun | None:
        return self._kill(host, "daemon", dice.uniform(*LONG), f"daemon of {host} away")

    def do_daemon_paused(self, host: str, dice: random.Random) -> Begun | None:
        return self._pause(host, "daemon", dice.uniform(*SHORT))

    def do_daemon_paused_past_its_lease(self, host: str, dice: random.Random) -> Begun | None:
        return self._pause(host, "daemon", dice.uniform(*LONG))

    def do_daemon_killed_ten_times(self, host: str, dice: random.Random) -> Begun | None:
        cluster = self._cluster
        if (host, "daemon") in cluster.held or not cluster.is_running(host, "daemon"):
            return None
        for _ in range(10):
            cluster.kill_program(host, "daemon")
            cluster.start(host, "daemon")
        return Begun(what=f"daemon of {host} killed ten times", heal=_nothing, seconds=1.0)

    def do_podman_killed(self, host: str, dice: random.Random) -> Begun | None:
        return self._kill(host, "podman", dice.uniform(0.5, 8))

    def do_podman_paused(self, host: str, dice: random.Random) -> Begun | None:
        return self._pause(host, "podman", dice.uniform(2, 20))

    def do_flanneld_killed(self, host: str, dice: random.Random) -> Begun | None:
        return self._kill(host, "flanneld", dice.uniform(0.5, 15))

    def do_flanneld_paused(self, host: str, dice: random.Random) -> Begun | None:
        return self._pause(host, "flanneld", dice.uniform(2, 15))

    def do_coredns_killed(self, host: str, dice: random.Random) -> Begun | None:
        return self._kill(host, "coredns", dice.uniform(0.5, 10))

    def do_guard_killed(self, host: str, dice: random.Random) -> Begun | None:
        return self._kill(host, "guard", dice.uniform(0.1, 1.0))

    def do_ingress_killed(self, host: str, dice: random.Random) -> Begun | None:
        return self._kill(host, "ingress", dice.uniform(0.1, 5))

    def do_ingress_paused(self, host: str, dice: random.Random) -> Begun | None:
        return self._pause(host, "ingress", dice.uniform(1, 8))

    # etcd -----------------------------------------------------------------------------------------

    def _member(self, dice: random.Random) -> str:
        return dice.choice([member.name for member in self._cluster.members])

    def do_etcd_member_killed(self, host: str, dice: random.Random) -> Begun | None:
        return self._kill(self._member(dice), "etcd", dice.uniform(1, 15))

    def do_etcd_member_paused(self, host: str, dice: random.Random) -> Begun | None:
        return self._pause(self._member(dice), "etcd", dice.uniform(1, 15))

    def do_etcd_leader_killed(self, host: str, dice: random.Random) -> Begun | None:
        leader = self._cluster.leader()
        said = f"etcd of {leader}, which leads, killed"
        return self._kill(leader, "etcd", dice.uniform(1, 15), said)

    def do_etcd_leader_paused(self, host: str, dice: random.Random) -> Begun | None:
        leader = self._cluster.leader()
        said = f"etcd of {leader}, which leads, stopped (SIGSTOP)"
        return self._pause(leader, "etcd", dice.uniform(2, 20), said)

    def do_etcd_away(self, host: str, dice: random.Random) -> Begun | None:
        done = [self._kill(member.name, "etcd", 0.0) for member in self._cluster.members]
        begun = [one for one in done if one is not None]
        return Begun(
            what="the whole of etcd killed",
            heal=lambda: [one.heal() for one in begun],
            seconds=dice.uniform(2, 20),
        )

    def do_etcd_compacted(self, host: str, dice: random.Random) -> Begun | None:
        cluster = self._cluster
        revision, _ = cluster.listing("/ozymandias/v1/format")
        cluster.compacted.add(revision)
        cluster.etcd("compact", str(revision))
        with suppress(AssertionError):  # one member after the other; one may be down
            cluster.etcd("defrag")
        return Begun(what=f"etcd compacted to {revision}", heal=_nothing, seconds=0.1)

    def do_lease_revoked(self, host: str, dice: random.Random) -> Begun | None:
        _, kvs = self._cluster.listing(f"{BELOW}nodes/{host}")
        if not kvs or not kvs[0].lease:
            return None
        self._cluster.etcd("lease", "revoke", f"{kvs[0].lease:x}")
        return Begun(what=f"the lease of {host} revoked", heal=_nothing, seconds=1.0)

    def do_garbage_in_etcd(self, host: str, dice: random.Random) -> Begun | None:
        keys = dice.sample(GARBAGE, 3)
        for key, value in keys:
            self._cluster.etcd("put", "--", BELOW + key, value)
        return Begun(
            what=f"garbage in etcd: {', '.join(key for key, _ in keys)}",
            heal=lambda: [self._cluster.etcd("del", "--", BELOW + key) for key, _ in keys],
            seconds=dice.uniform(3, 20),
        )

    # Power and network ----------------------------------------------------------------------------

    def _cut(self, hosts: list[str], seconds: float, what: str) -> Begun | None:
        cluster = self._cluster
        if any(h in cluster.off or not cluster[h].has_power for h in hosts):
            return None
        cluster.off.update(hosts)
        cluster.crash(*hosts)

        def heal() -> None:
            with cluster.lock:
                for name in hosts:
                    if not cluster[name].has_power:
                        cluster.hosts.boot(cluster[name])
                for name in hosts:
                    cluster.start_missing(name)
                cluster.off.difference_update(hosts)

        return Begun(what=what, heal=heal, seconds=seconds, ingresses=tuple(hosts))

    def do_power_cut(self, host: str, dice: random.Random) -> Begun | None:
        return self._cut([host], dice.uniform(1, 20), f"{host} loses power")

    def do_power_cut_of_all(self, host: str, dice: random.Random) -> Begun | None:
        return self._cut(list(self._cluster.names), dice.uniform(1, 8), "all hosts lose power")

    def _network(self, hosts: list[str], seconds: float, what: str) -> Begun:
        def heal() -> None:
            for name in hosts:
                self._cluster.hosts.heal(self._cluster[name])

        return Begun(what=what, heal=heal, seconds=seconds, ingresses=tuple(hosts))

    def _other(self, host: str, dice: random.Random) -> str:
        return dice.choice([name for name in self._cluster.names if name != host])

    def do_cut_off(self, host: str, dice: random.Random) -> Begun | None:
        self._cluster.hosts.partition(self._cluster[host])
        return self._network([host], dice.uniform(*LONG), f"{host} cut off")

    def do_cut_off_shortly(self, host: str, dice: random.Random) -> Begun | None:
        self._cluster.hosts.partition(self._cluster[host])
        return self._network([host], dice.uniform(*SHORT), f"{host} cut off shortly")

    def do_cut_between_two(self, host: str, dice: random.Random) -> Begun | None:
        other = self._other(host, dice)
        self._cluster.hosts.partition(self._cluster[host], self._cluster[other])
        what = f"{host} and {other} do not see each other"
        return self._network([host, other], dice.uniform(2, 20), what)

    def do_cut_one_way(self, host: str, dice: random.Random) -> Begun | None:
        self._cluster.hosts.partition(self._cluster[host], one_way=True)
        what = f"nobody hears {host}, which hears all"
        return self._network([host], dice.uniform(2, 20), what)

    def do_packets_lost(self, host: str, dice: random.Random) -> Begun | None:
        percent = dice.choice([5, 15, 30])
        self._cluster.hosts.lose(self._cluster[host], percent=percent)
        what = f"{percent} % of the packets of {host} get lost"
        return self._network([host], dice.uniform(3, 20), what)

    def do_cable_pulled(self, host: str, dice: random.Random) -> Begun | None:
        place, switch = self._cluster[host], self._cluster.hosts.switch
        if not place.has_power:
            return None
        switch.pull(place)

        def heal() -> None:
            if place.has_power:
                switch.pull(place, out=False)

        seconds = dice.uniform(1, 15)
        what = f"the cable of {host} pulled"
        return Begun(what=what, heal=heal, seconds=seconds, ingresses=(host,))

    # Pods and what they need ----------------------------------------------------------------------

    def do_containers_killed(self, host: str, dice: random.Random) -> Begun | None:
        prefix = self._cluster.hosts.prefix
        victims = sorted(processes.pids_of(prefix, host), key=lambda found: found[0])
        if not victims:
            return None
        _, pids = dice.choice(victims)
        self._signal(host, pids)
        return Begun(what=f"a container of {host} killed", heal=_nothing, seconds=0.1)

    def do_conmon_killed(self, host: str, dice: random.Random) -> Begun | None:
        groups = sorted(
            (processes.HIERARCHY / self._cluster.hosts.prefix / host).glob("libpod_parent/*/conmon")
        )
        files = [group / "cgroup.procs" for group in groups]
        pids = [int(word) for file in files for word in file.read_text().split()]
        if not pids:
            return None
        self._signal(host, [dice.choice(pids)])
        return Begun(what=f"a conmon of {host} killed", heal=_nothing, seconds=0.1)

    def _signal(self, host: str, pids: list[int]) -> None:
        """kill -9, of the host's processes alone."""
        own = self._cluster[host].cgroups.processes()
        targets = [str(pid) for pid in pids if pid in own]
        if targets:
            processes.kill(targets)

    def do_pod_network_removed(self, host: str, dice: random.Random) -> Begun | None:
        found = self._cluster[host].run("ip", "-br", "link", "show", "type", "veth").stdout
        names = [line.split("@")[0] for line in found.splitlines() if line.startswith("veth")]
        if not names:
            return None
        name = dice.choice(names)
        self._cluster[host].run("ip", "link", "delete", name, check=False)
        return Begun(what=f"{name}, of a pod of {host}, deleted", heal=_nothing, seconds=0.1)

    def do_image_removed(self, host: str, dice: random.Random) -> Begun | None:
        image, place = dice.choice([DEMO, BUSYBOX]), self._cluster[host]
        done = place.run("podman", "image", "inspect", "-f", "{{.Id}}", image, check=False)
        if done.returncode:
            return None
        id_ = done.stdout.strip()
        place.run("podman", "untag", id_, image)

        def heal() -> None:
            self._cluster[host].run("podman", "tag", id_, image)

        return Begun(what=f"{image} removed from {host}", heal=heal, seconds=dice.uniform(2, 15))

    def do_disk_full(self, host: str, dice: random.Random) -> Begun | None:
        ballast = f"{DISK}/ballast"
        script = f"dd if=/dev/zero of={ballast} bs=64k 2>/dev/null; true"
        self._cluster[host].run("sh", "-c", script)
        return Begun(
            what=f"the disk of {host} full",
            heal=lambda: self._cluster[host].run("rm", "-f", ballast),
            seconds=dice.uniform(3, 20),
            lingers=CLEAR_SECONDS,
        )

    def do_memory_hog(self, host: str, dice: random.Random) -> Begun | None:
        job = shell("hog", "tail /dev/zero", memory="32M")
        answer = self._cluster.request("POST", "/v1/jobs", job, node=host, timeout=10)
        if answer.status not in (200, 201):
            return None
        return Begun(
            what="a pod that eats all memory it may have",
            heal=self._stop_hog,
            seconds=dice.uniform(3, 15),
        )

    def _stop_hog(self) -> None:
        for name in self._cluster.names:
            with suppress(OSError, ValueError):
                answer = self._cluster.request(
                    "DELETE", "/v1/jobs/default/hog", node=name, timeout=10
                )
                if answer.status in (200, 404):
                    return
        raise AssertionError("nobody stops the hog")


def _nothing() -> None:
    pass
