"""Who holds the store: etcd's members, which stay odd in number: 1, 3 or 5.

An even number is worth no more than one less and fails more often. So a host that would make the
number even joins as a learner: it has a copy of everything and no vote, until one more host comes;
then both get their votes, one after the other. Hosts beyond the wished number are clients. When a
member leaves, a client takes its place; where there is none, the last one that joined gives up its
vote and stays as a learner.

`next_step` decides for one host, without IO, from what etcd and the host records say; etcd itself
sees to it that two hosts' steps don't clash (one learner at a time), and all look again after each.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from ozymandias.store.etcd_admin import Member


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Add(Step):
    """This host, as a learner."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Promote(Step):
    member: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Demote(Step):
    """This host: leaves as a member and comes back as a learner."""

    member: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Settled(Step):
    is_member: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class View:
    """What one host sees of the store's members and of all hosts."""

    members: Sequence[Member]
    hosts: Mapping[str, float]  # peer URL -> when it joined
    mine: str  # this host's peer URL
    absent: frozenset[str] = frozenset()  # those of hosts whose node is not there now
    members_max: int


def next_step(view: View) -> Step:
    voters = [member for member in view.members if not member.is_learner]
    learners = [member for member in view.members if member.is_learner]
    mine = next((m for m in view.members if view.mine in m.peer_urls), None)
    if mine is None:
        return _outsider(view, voters, learners)
    if mine.is_learner:
        if len(voters) % 2 == 0:
            return Promote(member=mine.id, reason=f"makes {len(voters) + 1} members with a vote")
        return Settled(
            is_member=True, reason="has a copy and no vote, until one more host joins the store"
        )
    if len(voters) % 2 == 0 and not learners and not _others(view) and _is_last(view, voters):
        return Demote(
            member=mine.id,
            reason=f"{len(voters)} votes are worth no more than {len(voters) - 1}",
        )
    return Settled(is_member=True, reason="is a member with a vote")


def _outsider(view: View, voters: Sequence[Member], learners: Sequence[Member]) -> Step:
    if len(view.members) >= view.members_max:
        return Settled(
            is_member=False, reason=f"the store has its {view.members_max} members: a client"
        )
    if view.mine in view.hosts and not _is_next(view):
        return Settled(is_member=False, reason="another host's turn: a client for now")
    if learners:
        return Promote(
            member=learners[0].id, reason="gets its vote now that one more host joins the store"
        )
    return Add(reason=f"joins the {len(voters)} that hold the store")


def _others(view: View) -> list[str]:
    """Hosts that are no members, and might be."""
    taken = {url for member in view.members for url in member.peer_urls}
    return [url for url in view.hosts if url not in taken]


def _is_next(view: View) -> bool:
    """Of those that wait; one that is not there does not keep the others waiting."""
    waiting = [url for url in _others(view) if url == view.mine or url not in view.absent]
    return min(waiting, key=lambda url: (view.hosts[url], url)) == view.mine


def _is_last(view: View, voters: Sequence[Member]) -> bool:
    """Of those with a vote, the one that joined last; a removed host's member is not asked."""
    known = [url for member in voters for url in member.peer_urls if url in view.hosts]
    return len(known) > 1 and max(known, key=lambda u: (view.hosts[u], u)) == view.mine


def serving(members: Sequence[Member], mine: str) -> tuple[str, ...]:
    """Client URLs of all that have a vote, this host's own first."""
    found = [
        (mine not in member.peer_urls, url)
        for member in members
        if not member.is_learner
        for url in member.client_urls
    ]
    return tuple(url for _, url in sorted(found))


def initial(members: Sequence[Member], name: str, mine: str) -> tuple[str, ...]:
    """What etcd here must be told of the members that are, itself among them."""
    return tuple(
        f"{name if mine in member.peer_urls else member.name or f'unstarted-{member.id:x}'}={url}"
        for member in members
        for url in member.peer_urls
    )
