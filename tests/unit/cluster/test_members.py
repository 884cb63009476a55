"""Who holds the store: each host's next step, and where all of them come to rest."""

from dataclasses import dataclass, field

from hypothesis import given, settings
from hypothesis import strategies as st

from ozymandias.cluster.founding import members
from ozymandias.cluster.founding.members import Add, Demote, Promote, Settled, View
from ozymandias.model.record import replace
from ozymandias.store.etcd_admin import Member

STEPS_MAX = 40


def url(host: int) -> str:
    return f"https://192.0.2.{host}:2380"


@dataclass
class Etcd:
    """The rules of etcd's own: one learner at a time, a majority for every change."""

    maximum: int
    members: dict[int, Member] = field(default_factory=dict)
    hosts: list[int] = field(default_factory=list)  # in the order of joining

    def view(self, host: int) -> View:
        return View(
            members=tuple(self.members.values()),
            hosts={url(other): float(n) for n, other in enumerate(self.hosts)},
            mine=url(host),
            members_max=self.maximum,
        )

    def found(self, host: int) -> None:
        self.hosts.append(host)
        self.members[host] = Member(id=host, name=f"h{host}", peer_urls=(url(host),))

    def step(self, host: int) -> bool:
        """One step of that host, as its keeper takes it; whether there was one."""
        match members.next_step(self.view(host)):
            case Settled():
                return False
            case Add():
                assert not any(m.is_learner for m in self.members.values())
                self.members[host] = Member(
                    id=host, name=f"h{host}", peer_urls=(url(host),), is_learner=True
                )
            case Promote(member=id_):
                self.members[id_] = replace(self.members[id_], is_learner=False)
            case Demote():
                del self.members[host]
                assert self.votes() >= 1
        return True

    def votes(self) -> int:
        return sum(not m.is_learner for m in self.members.values())

    def rest(self) -> None:
        for _ in range(STEPS_MAX):
            if sum(self.step(host) for host in self.hosts) == 0:
                return
        raise AssertionError(f"no rest: {self.members}")


def joined(count: int, maximum: int) -> Etcd:
    etcd = Etcd(maximum)
    etcd.found(1)
    for host in range(2, count + 1):
        etcd.hosts.append(host)
        etcd.rest()
    return etcd


def test_votes_by_number_of_hosts() -> None:
    """1, 1 and a learner, 3, then clients; with five wished for, 3 and a learner, then 5."""
    table = {3: [(1, 1), (1, 2), (3, 3), (3, 3), (3, 3)], 5: [(1, 1), (1, 2), (3, 3), (3, 4)]}
    table[1] = [(1, 1), (1, 1), (1, 1)]
    for maximum, expected in table.items():
        found = [joined(n, maximum) for n in range(1, len(expected) + 1)]
        assert [(e.votes(), len(e.members)) for e in found] == expected
    assert joined(5, 5).votes() == 5 and joined(7, 5).votes() == 5


@settings(max_examples=300, deadline=None)
@given(
    st.sampled_from([1, 3, 5]),
    st.lists(st.tuples(st.booleans(), st.integers(0, 9)), max_size=15),
)
def test_whoever_comes_and_goes_votes_are_odd_at_rest(
    maximum: int, history: list[tuple[bool, int]]
) -> None:
    """After any joins and removals: odd, at most the wished number, and a free place is taken."""
    etcd = Etcd(maximum)
    etcd.found(100)
    for number, (joins, which) in enumerate(history):
        if joins:
            etcd.hosts.append(number)
        elif len(etcd.hosts) > 1:
            gone = etcd.hosts[which % len(etcd.hosts)]
            voters = [h for h, m in etcd.members.items() if not m.is_learner]
            if voters == [gone]:
                continue  # the last with a vote can't leave
            etcd.hosts.remove(gone)
            etcd.members.pop(gone, None)
        etcd.rest()
        votes = etcd.votes()
        assert votes % 2 == 1 and votes <= maximum
        assert len(etcd.members) == min(maximum, len(etcd.hosts))
        assert len(etcd.members) - votes <= 1


def test_a_host_that_is_not_there_keeps_nobody_waiting() -> None:
    """The free place goes to the next one that is there; a vote is not given up for its sake."""
    etcd = joined(3, 3)
    etcd.hosts += [4, 5]
    del etcd.members[3]
    etcd.hosts.remove(3)
    view = replace(etcd.view(5), absent=frozenset({url(4)}))
    assert isinstance(members.next_step(view), Add)
    assert isinstance(members.next_step(etcd.view(5)), Settled)
    two = replace(etcd.view(2), absent=frozenset({url(4), url(5)}))
    assert isinstance(members.next_step(two), Settled)


def test_what_etcd_and_clients_are_told() -> None:
    """A starting member is told of all; clients of those with a vote, their own first."""
    found = (
        Member(id=1, name="h1", peer_urls=(url(1),), client_urls=("https://192.0.2.1:2379",)),
        Member(id=2, name="h2", peer_urls=(url(2),), client_urls=("https://192.0.2.2:2379",)),
        Member(id=3, name="", peer_urls=(url(3),), is_learner=True),
    )
    assert members.serving(found, url(2)) == ("https://192.0.2.2:2379", "https://192.0.2.1:2379")
    assert members.initial(found, "h3", url(3)) == (
        f"h1={url(1)}",
        f"h2={url(2)}",
        f"h3={url(3)}",
    )
    assert "unstarted-3=" in members.initial(found, "h1", url(1))[2]
