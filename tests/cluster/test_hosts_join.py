"""A cluster founded by `ozy cluster init` and `join`, on hosts of their own.

TLS everywhere, flannel, CoreDNS, podman and etcd, all run by the small supervisor. Hosts come and
leave, lose power, and the whole is brought back from a backup; pods go on.
"""

import json
import os
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from tests.cluster.hosts import Host, Hosts
from tests.cluster.hosts.cluster import SUBNET_FILE, HostCluster
from tests.cluster.hosts.programs import FLANNEL_KEY, INGRESS_DOMAIN, INGRESS_PORT, built
from tests.cluster.kit import until, web

SETTINGS = "/etc/ozymandias/ozymandias.toml"
SUBNETS_KEY = FLANNEL_KEY.replace("config", "subnets")
TTL_SECONDS = 8
RUN_SECONDS_MAX = 150.0

pytestmark = pytest.mark.timeout(400)


class FoundedCluster(HostCluster):
    """Made as an administrator would, by commands on the hosts."""

    def __init__(self, hosts: Hosts) -> None:
        super().__init__(hosts)
        self.seconds: dict[str, float] = {}

    def command(self, host: Host, *words: str, code: int = 0) -> Any:
        """`ozy … -o json` as root on that host; its document."""
        done = host.run("ozy", *words, "-o", "json", check=False, seconds=RUN_SECONDS_MAX)
        said = f"{host.name}: {' '.join(words)}: {done.stdout}{done.stderr}{self.logs(host)}"
        assert done.returncode == code, said
        return json.loads(done.stdout)

    def logs(self, host: Host) -> str:
        files = sorted(host.path("/var/lib/ozymandias/logs").glob("*.log"))
        return "".join(f"\n== {f.name}\n{f.read_text(errors='replace')[-1200:]}" for f in files)

    def options(self, host: Host) -> list[str]:
        bins = [word for name in ("coredns", "flannel") for word in ("--bin", str(_bin(name)))]
        listen = f"0.0.0.0:{INGRESS_PORT}"
        return ["--address", host.address, "--ingress", listen, "--memory", "1G", *bins]

    def init(self, host: Host) -> None:
        more = ("--ingress-domain", INGRESS_DOMAIN, "--lease-ttl", str(TTL_SECONDS))
        done = self.command(host, "cluster", "init", *self.options(host), *more)
        self.seconds[f"init {host.name}"] = done["seconds"]

    def join(self, host: Host, first: Host) -> None:
        token = self.command(first, "cluster", "token", "create")["token"]
        words = ("cluster", "join", first.address, token, *self.options(host))
        self.seconds[f"join {host.name}"] = self.command(host, *words)["seconds"]

    def roles(self, host: str = "n1") -> dict[str, str]:
        document = self.command(self.hosts[host], "cluster", "status")
        return {m["name"]: m["role"].replace("leader", "member") for m in document["members"]}

    def boot(self, *names: str) -> None:
        """What systemd would do: one program that starts all others."""
        self.hosts.boot(*(self.hosts[name] for name in names))
        for name in names:
            words = ("-P", "-m", "ozymandias.cluster.founding.supervise")
            self.hosts[name].spawn("supervisor", sys.executable, *words)


def _bin(name: str) -> Any:
    return built(name).parent


@pytest.fixture(scope="module")
def cluster() -> Iterator[FoundedCluster]:
    with Hosts.up(3) as hosts:
        made = FoundedCluster(hosts)
        n1, n2, n3 = hosts
        made.init(n1)
        made.join(n2, n1)
        made.join(n3, n1)
        print(f"\nfounded: {made.seconds}")
        made.wait_ready("n1", "n2", "n3")
        try:
            yield made
        finally:
            if os.environ.get("OZY_KEEP_LOGS"):
                print("".join(made.logs(host) for host in hosts if host.has_power))


def test_three_hosts_are_a_cluster_that_the_doctor_calls_well(cluster: FoundedCluster) -> None:
    """No check fails on any host, the store has three members, certificates are good for a year."""
    for host in cluster.hosts:
        checks = cluster.command(host, "doctor", "--config", SETTINGS)
        assert [c for c in checks if c["verdict"] == "fail"] == []
    assert cluster.roles() == dict.fromkeys(("n1", "n2", "n3"), "member")
    status = cluster.command(cluster["n2"], "cluster", "status")
    assert all(h["alive"] and h["certificate_days_left"] > 360 for h in status["hosts"])


def test_pods_of_a_founded_cluster_are_reached_everywhere(cluster: FoundedCluster) -> None:
    """One instance on each host; every ingress serves them and every CoreDNS names them."""
    cluster.submit(web("web", instances=3))
    assert len(set(cluster.placed("web").values())) == 3
    for name in ("n1", "n2", "n3"):
        until(lambda name=name: cluster.fetch(f"web.{INGRESS_DOMAIN}", at=name).status == 200)
        until(lambda name=name: len(cluster.resolve("web.default.ozy.internal", at=name)) == 3)
    code, out = cluster.run("web-0", "true")
    assert code == 0, f"a call between nodes, over TLS: {out}"


def failing(cluster: FoundedCluster, host: Host) -> dict[str, str]:
    """Name of each check that fails there -> what it says and what to do."""
    done = host.run("ozy", "doctor", "-o", "json", check=False, seconds=RUN_SECONDS_MAX)
    checks = json.loads(done.stdout)
    assert all(check["remedy"] for check in checks if check["verdict"] == "fail")
    return {
        check["name"]: f"{check['detail']} {check['remedy']}"
        for check in checks
        if check["verdict"] == "fail"
    }


def supervised(host: Host, do: str, name: str) -> None:
    program = (
        "import json, socket, sys; s = socket.socket(socket.AF_UNIX);"
        " s.connect('/run/ozymandias/supervisor.sock');"
        " s.sendall(json.dumps({'do': sys.argv[1], 'name': sys.argv[2]}).encode() + b'\\n');"
        " print(s.makefile().readline())"
    )
    host.run(sys.executable, "-c", program, do, name)


def test_the_doctor_names_what_is_missing_and_the_rest_goes_on(cluster: FoundedCluster) -> None:
    """flanneld and CoreDNS stopped, port 53 taken, a closed port: each with remedy; pods serve."""
    n2 = cluster["n2"]
    for name in ("flanneld", "coredns"):
        supervised(n2, "stop", name)
    bind = f"s.bind(('{n2.address}', 53)); print('bound', flush=True); time.sleep(600)"
    program = f"import socket, time; s = socket.socket(type=socket.SOCK_DGRAM); {bind}"
    taker = n2.spawn("taker", sys.executable, "-c", program)
    until(lambda: "bound" in taker.text())
    rule = ("INPUT", "-p", "tcp", "--dport", "7400", "-s", cluster["n1"].address, "-j", "DROP")
    n2.run("iptables", "-I", *rule)
    try:
        found = failing(cluster, n2)
        assert "does not run" in found["flanneld"] and "does not run" in found["coredns"]
        assert "taken by python" in found[f"DNS {n2.address}:53"]
        assert "port 7400: no answer" in found["reached by n1"]
        assert cluster.nodes(node="n1")["n2"]["state"] == "ready"
        assert cluster.fetch(f"web.{INGRESS_DOMAIN}", at="n2").status == 200
    finally:
        n2.run("iptables", "-D", *rule)
        taker.kill()
        for name in ("flanneld", "coredns"):
            supervised(n2, "start", name)
    until(lambda: failing(cluster, n2) == {}, 60)


@contextmanager
def no_subnet_left(cluster: FoundedCluster) -> Iterator[None]:
    """flannel's network is small, and others have all of its subnets."""
    n1 = cluster["n1"]
    tls = ("--cacert=/etc/ozymandias/tls/ca.crt", "--cert=/etc/ozymandias/tls/client.crt")
    etcdctl = ("etcdctl", f"--endpoints=https://{n1.address}:2379", *tls)
    etcdctl = (*etcdctl, "--key=/etc/ozymandias/tls/client.key")
    former = n1.run(*etcdctl, "get", "--print-value-only", FLANNEL_KEY).stdout.strip()
    small = json.loads(former) | {"Network": "10.79.0.0/22"}
    leases = [f"{SUBNETS_KEY}/10.79.{number}.0-24" for number in (1, 2, 3)]
    lease = json.dumps({"PublicIP": "10.77.0.99", "BackendType": "vxlan", "BackendData": {}})
    try:
        n1.run(*etcdctl, "put", FLANNEL_KEY, json.dumps(small))
        for key in leases:
            n1.run(*etcdctl, "put", key, lease)
        yield
    finally:
        n1.run(*etcdctl, "put", FLANNEL_KEY, former)
        for key in leases:
            n1.run(*etcdctl, "del", key)


def test_a_host_that_gets_no_subnet(cluster: FoundedCluster) -> None:
    """The doctor says that they are exhausted, and a way out; its pods and all others go on."""
    n2 = cluster["n2"]
    before = cluster.pods()
    supervised(n2, "stop", "flanneld")
    file = n2.path(SUBNET_FILE)
    subnet = file.read_text()
    said = n2.path("/var/lib/ozymandias/logs/flanneld.log")
    with no_subnet_left(cluster):
        file.unlink()
        supervised(n2, "start", "flanneld")
        until(lambda: "out of subnets" in said.read_text(), say="flanneld says so")
        found = failing(cluster, n2)["pod subnet"]
        assert "exhausted: all 3 subnets are taken" in found and "--pod-network" in found
        assert cluster.fetch(f"web.{INGRESS_DOMAIN}", at="n2").status == 200
        supervised(n2, "stop", "flanneld")
    file.write_text(subnet)
    supervised(n2, "start", "flanneld")
    until(lambda: failing(cluster, n2) == {}, 60)
    assert cluster.pods() == before


def test_everything_is_restored_from_a_backup_and_pods_go_on(cluster: FoundedCluster) -> None:
    """Jobs of later are gone, those of the backup run on: the same containers, not restarted."""
    n1, n2, n3 = (cluster[name] for name in ("n1", "n2", "n3"))
    cluster.command(n1, "cluster", "backup", "/srv/backup.tar")
    before = {name: when for name, when in cluster.containers().items() if "web" in name}
    assert len(before) == 3
    cluster.submit(web("later"))
    started = time.monotonic()
    for host in (n2, n3):
        cluster.command(host, "cluster", "halt")
    cluster.command(n1, "cluster", "restore", "/srv/backup.tar")
    for host in (n2, n3):
        cluster.command(host, "cluster", "resume", n1.address)
    cluster.wait_ready("n1", "n2", "n3", seconds=90)
    print(f"\nrestored in {time.monotonic() - started:.1f} s")
    until(
        lambda: not any("later" in name for name in cluster.containers()), 60, say="later is gone"
    )
    cluster.wait_healthy("web", seconds=60)
    assert {n: w for n, w in cluster.containers().items() if "web" in n} == before
    until(lambda: cluster.roles() == dict.fromkeys(("n1", "n2", "n3"), "member"), 90)
    for name in ("n1", "n2", "n3"):
        until(lambda name=name: cluster.fetch(f"web.{INGRESS_DOMAIN}", at=name).status == 200)


def test_a_power_cut_of_all_hosts_is_followed_by_their_boot(cluster: FoundedCluster) -> None:
    """The supervisor starts all that ran; certificates, members and jobs are as they were."""
    placed = cluster.placed("web")
    cluster.crash("n1", "n2", "n3")
    started = time.monotonic()
    cluster.boot("n1", "n2", "n3")
    cluster.wait_ready("n1", "n2", "n3", seconds=90)
    cluster.wait_healthy("web", seconds=90)
    print(f"\nhealthy {time.monotonic() - started:.1f} s after the boot")
    assert cluster.placed("web") == placed
    assert cluster.roles() == dict.fromkeys(("n1", "n2", "n3"), "member")


def test_a_fourth_host_joins_and_receives_work(cluster: FoundedCluster) -> None:
    """It is a client of the store and a node like any other within seconds."""
    [n4] = cluster.hosts.add("n4")
    cluster.join(n4, cluster["n1"])
    print(f"\n{cluster.seconds}")
    cluster.wait_ready("n1", "n4")
    assert "n4" not in cluster.roles()
    cluster.request("POST", "/v1/jobs/default/web/scale", {"instances": 4})
    until(lambda: "n4" in cluster.placed("web").values(), say="n4 has work")
    cluster.wait_healthy("web", seconds=60)
    until(lambda: cluster.fetch(f"web.{INGRESS_DOMAIN}", at="n4").status == 200)


def test_a_host_leaves_and_another_takes_its_place_in_the_store(cluster: FoundedCluster) -> None:
    """Its work is moved first, then it is gone: no member, no node, no file of ours."""
    n2 = cluster["n2"]
    started = time.monotonic()
    cluster.command(n2, "node", "leave")
    print(f"\nleft in {time.monotonic() - started:.1f} s")
    assert not n2.path("/etc/ozymandias/host.json").exists()
    assert "n2" not in cluster.nodes(node="n1")
    cluster.wait_healthy("web", seconds=60)
    assert "n2" not in cluster.placed("web").values()
    until(lambda: cluster.roles() == dict.fromkeys(("n1", "n3", "n4"), "member"), 90)
