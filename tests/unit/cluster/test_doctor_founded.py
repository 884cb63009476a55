"""What the doctor makes of the facts of a founded host: each finding with its remedy."""

import time
from email.utils import formatdate
from pathlib import Path

import pytest

from ozymandias.cluster.doctor import founded
from ozymandias.cluster.doctor.check import Check
from ozymandias.cluster.doctor.founded import Shared
from ozymandias.cluster.founding import authority
from ozymandias.cluster.founding.credentials import Held
from ozymandias.cluster.founding.record import ClusterSettings, HostRecord, Places
from ozymandias.cluster.reach import Answer
from ozymandias.store.etcd_admin import Member

NOW = time.time()
RECORD = HostRecord(cluster=ClusterSettings(id="c1"), name="h1", address="192.0.2.1")
CONFIG = {"Network": "10.78.0.0/22", "SubnetLen": 24}


def member(number: int, *, name: str = "h", is_learner: bool = False) -> Member:
    return Member(id=number, name=name, peer_urls=(f"https://{number}",), is_learner=is_learner)


def shared(**changes: object) -> Shared:
    usual = {"members": (member(1),), "hosts": ("h1",), "flannel": CONFIG, "subnets": {}}
    return Shared(**usual | changes)  # type: ignore[arg-type]


def verdicts(checks: list[Check]) -> list[str]:
    assert all(check.remedy for check in checks if check.verdict != "ok")
    return [check.verdict for check in checks]


@pytest.fixture
def places(tmp_path: Path) -> Places:
    return Places(root=tmp_path)


def leased(places: Places) -> None:
    places.flannel_subnet.parent.mkdir(parents=True)
    places.flannel_subnet.write_text("FLANNEL_NETWORK=10.78.0.0/22\nFLANNEL_SUBNET=10.78.1.1/24\n")


def test_a_subnet_is_there_or_missing(places: Places) -> None:
    """Without flanneld's file no pod gets an address here; with it the subnet is told."""
    [missing] = founded.flannel(RECORD, places, shared())
    assert missing.verdict == "fail" and "no address here" in missing.detail
    leased(places)
    [there] = founded.flannel(RECORD, places, shared())
    assert there.verdict == "ok" and "10.78.1.1/24" in there.detail


def test_subnets_are_exhausted(places: Places) -> None:
    """The host that got none is told why; those that have one are warned for the next."""
    taken = {f"10.78.{n}.0-24": f"192.0.2.{n}" for n in (1, 2, 3)}
    [none_left] = founded.flannel(RECORD, places, shared(subnets=taken))
    assert none_left.verdict == "fail" and "exhausted: all 3" in none_left.detail
    assert "--pod-network" in none_left.remedy
    leased(places)
    [last] = founded.flannel(RECORD, places, shared(subnets=taken))
    assert last.verdict == "warn" and "left for another host" in last.detail


@pytest.mark.parametrize(("used", "verdict"), [(0, "ok"), (240, "warn"), (253, "fail")])
def test_addresses_of_a_subnet_run_out(used: int, verdict: str) -> None:
    """Of a /24, 253 are for pods."""
    assert founded.addresses(256, used).verdict == verdict


def answer(seconds_apart: float) -> Answer:
    return Answer(status=200, body=b"", date=formatdate(NOW + seconds_apart, usegmt=True))


@pytest.mark.parametrize(
    ("apart", "expected"), [(0, ["ok"]), (60, ["ok", "warn"]), (-3600, ["ok", "fail"])]
)
def test_clocks_of_other_hosts_are_compared(apart: float, expected: list[str]) -> None:
    """A minute is a warning, an hour a failure; the remedy names who keeps clocks."""
    found = list(founded.peer("h2", answer(apart), NOW))
    assert verdicts(found) == expected
    assert apart == 0 or "chrony" in found[-1].remedy


def test_a_host_that_is_not_reached_in_either_direction() -> None:
    """Not from here: the other's name and why. Not by the other: this host's ports and why."""
    [away] = founded.peer("h2", OSError(113, "No route to host"), NOW)
    assert away.verdict == "fail" and "No route to host" in away.detail
    closed = founded.reached("h2", {7400: "no answer within 2 s", 2380: ""}, "192.0.2.1")
    assert closed.verdict == "fail" and "port 7400: no answer" in closed.detail
    assert "2380" not in closed.detail and "[node] address" in closed.remedy
    assert founded.reached("h2", {7400: "", 2380: ""}, "192.0.2.1").verdict == "ok"


def test_members_that_are_even_unstarted_or_do_not_know_us() -> None:
    """Each is named: two votes, one that was never started, a host that was removed."""
    two = shared(members=(member(1), member(2)))
    assert verdicts(list(founded.members(two, RECORD))) == ["warn"]
    waiting = shared(members=(member(1), member(2, name="", is_learner=True)))
    assert verdicts(list(founded.members(waiting, RECORD))) == ["warn", "ok"]
    stranger = shared(hosts=("h2",))
    assert verdicts(list(founded.members(stranger, RECORD))) == ["fail", "ok"]


def test_certificates_near_and_past_their_end() -> None:
    """Good for long, nearly over, no good."""
    pair, key = authority.make_authority("c1", NOW), authority.make_key()
    request = authority.make_request(key, "h1")
    held = []
    for age in (0, 345, 400):
        now = NOW - age * 86_400
        cert = authority.sign(pair, request, use="host", name="h1", addresses=(), now=now)
        problem = authority.problem_of(cert, key, pair.cert, NOW)
        held.append(Held(use="host", seen=authority.read(cert), problem=problem))
    assert verdicts(list(founded.certificates(held, NOW))) == ["ok", "warn", "fail"]
