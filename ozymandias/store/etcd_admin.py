"""Looking after etcd itself: who belongs to it, and a copy of all it holds.

Beside the Store port on purpose: daemons never do this. Calls go to any endpoint that answers; a
change whose answer is lost is Ambiguous, and whoever asked looks at the members again. A learner
follows and has no vote; etcd 3.4 and 3.5 take one at a time.
"""

from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass

import grpc.aio

from ozymandias.ports import StoreError, Unavailable
from ozymandias.store import etcd_pb2 as pb
from ozymandias.store.etcd_calls import (
    MEMBERS,
    STATUS,
    Calls,
    Credentials,
    Method,
    Timeouts,
    translate,
)

ADD = Method("/etcdserverpb.Cluster/MemberAdd", pb.MemberAddResponse)
REMOVE = Method("/etcdserverpb.Cluster/MemberRemove", pb.MembersResponse)
PROMOTE = Method("/etcdserverpb.Cluster/MemberPromote", pb.MembersResponse)
SNAPSHOT = Method("/etcdserverpb.Maintenance/Snapshot", pb.SnapshotResponse)

SNAPSHOT_SECONDS_MAX = 600.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Member:
    """``name`` is "" until it has been started for the first time."""

    id: int
    name: str
    peer_urls: tuple[str, ...]
    client_urls: tuple[str, ...] = ()
    is_learner: bool = False

    @property
    def is_started(self) -> bool:
        return bool(self.name)


@dataclass(frozen=True, slots=True, kw_only=True)
class Answering:
    """What the member behind one endpoint says of itself."""

    member_id: int
    leader_id: int
    is_learner: bool
    version: str
    db_size_bytes: int
    revision: int


class EtcdAdmin:
    """Make it inside a running event loop; close it with `aclose`."""

    def __init__(
        self,
        endpoints: Sequence[str],
        credentials: Credentials,
        timeouts: Timeouts = Timeouts(),  # noqa: B008 (frozen)
    ) -> None:
        self._calls = Calls(endpoints, credentials, timeouts)

    async def aclose(self) -> None:
        await self._calls.aclose()

    async def members(self) -> tuple[Member, ...]:
        answer = await self._calls.ask(MEMBERS, pb.MemberListRequest(linearizable=True))
        return tuple(sorted(map(_member, answer.members), key=lambda member: member.id))

    async def add_learner(self, peer_url: str) -> Member:
        request = pb.MemberAddRequest(peerURLs=[peer_url], isLearner=True)
        answer = await self._calls.ask(ADD, request, write=True)
        return _member(answer.member)

    async def promote(self, member_id: int) -> None:
        """Invalid while it has not caught up with its leader."""
        await self._calls.ask(PROMOTE, pb.MemberPromoteRequest(ID=member_id), write=True)

    async def remove(self, member_id: int) -> None:
        await self._calls.ask(REMOVE, pb.MemberRemoveRequest(ID=member_id), write=True)

    async def answering(self) -> Answering:
        """Of the first endpoint alone, also while it knows no leader."""
        try:
            seconds = self._calls.timeouts.attempt
            answer = await self._calls.ask_member(0, STATUS, pb.StatusRequest(), seconds)
        except grpc.aio.AioRpcError as error:
            raise Unavailable(f"{error.code().name}: {error.details()}") from error
        return Answering(
            member_id=answer.header.member_id,
            leader_id=answer.leader,
            is_learner=answer.isLearner,
            version=answer.version,
            db_size_bytes=answer.dbSize,
            revision=answer.header.revision,
        )

    async def snapshot(self) -> AsyncIterator[bytes]:
        """The whole data file in pieces, its checksum last; StoreError when it breaks off."""
        call = self._calls.open_answers(SNAPSHOT, pb.SnapshotRequest(), SNAPSHOT_SECONDS_MAX)
        remaining = -1
        try:
            async for part in call:
                remaining = part.remaining_bytes
                yield part.blob
        except grpc.aio.AioRpcError as error:
            raise _broken(error) from error
        finally:
            call.cancel()
        if remaining != 0:
            raise Unavailable("the copy broke off before its end")


def _broken(error: grpc.aio.AioRpcError) -> StoreError:
    code, detail = error.code(), error.details() or ""
    if code in (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.DEADLINE_EXCEEDED):
        return Unavailable(f"{code.name}: {detail}")
    return translate(code, detail)


def _member(found: pb.Member) -> Member:
    return Member(
        id=found.ID,
        name=found.name,
        peer_urls=tuple(found.peerURLs),
        client_urls=tuple(found.clientURLs),
        is_learner=found.isLearner,
    )
