"""A watch that outlives members: whole revisions, in order, once each.

The position is the revision after the last one delivered. When the stream ends, or its member
falls silent, the watch goes on from there at another member; what an old server repeats is
dropped. A paused member keeps its connection open, so it is asked every few seconds to say
something; its answer to that is only a sign of life and never a position (before etcd 3.4.25 and
3.5.8 it can overtake events). Messages are not fragmented: etcd does that in quadratic time.
"""

import asyncio
import contextlib
from collections.abc import AsyncGenerator, Iterator, Sequence
from typing import overload

import grpc.aio

from ozymandias.ports import ClusterChanged, Compacted, Denied, Event, Unavailable, Unread
from ozymandias.store import etcd_pb2 as pb
from ozymandias.store.etcd_calls import (
    RANGE,
    TOKEN_FRESH_SECONDS,
    WATCH,
    Calls,
    is_passing,
    is_stale_token,
    translate,
)
from ozymandias.store.etcd_wire import event_of
from ozymandias.store.keys import prefix_end


class Watch:
    def __init__(
        self,
        calls: Calls,
        prefix: bytes,
        revision: int,
        *,
        prev: bool = False,
        alone: bool = False,
    ) -> None:
        """``alone``: of the key that the prefix is, and of no other."""
        if revision < 1:
            raise ValueError("a watch starts at revision 1 or later: 0 means 'now' to etcd")
        self._calls = calls
        self._position = revision
        self._key = prefix or b"\0"
        self._range_end = b"" if alone else prefix_end(prefix)
        self._prev = prev

    async def batches(self) -> AsyncGenerator[Sequence[Event], None]:
        """For ever. Raises Compacted, Denied, ClusterChanged."""
        failures = denials = 0
        while True:
            before, member, logins = self._position, self._calls.current, self._calls.logins
            try:
                await self._calls.ensure_login(TOKEN_FRESH_SECONDS)
                await self._check_history()
                member, logins = self._calls.current, self._calls.logins
                async with contextlib.aclosing(self._stream(member)) as stream:
                    async for events in stream:
                        denials = 0
                        yield events
            except Denied:
                denials += 1
                if denials > 1 or not self._calls.has_user:
                    raise
                await self._calls.login(logins)
                continue
            except (Unavailable, TimeoutError):
                if self._calls.is_closed:
                    raise
            except grpc.aio.AioRpcError as error:
                code, detail = error.code(), error.details() or ""
                if not is_passing(code, detail) and not is_stale_token(detail):
                    raise translate(code, detail) from error
                if is_stale_token(detail):
                    await self._calls.login(logins)
            self._calls.turn_from(member)
            failures = 0 if self._position > before else failures + 1
            await self._calls.back_off(failures)

    async def _check_history(self) -> None:
        """A store restored from a backup would let us wait in silence for its future."""
        request = pb.RangeRequest(key=self._key, range_end=self._range_end, count_only=True)
        answer = await self._calls.ask(RANGE, request)
        if answer.header.revision < self._position - 1:
            raise ClusterChanged(
                f"revision {answer.header.revision} is before {self._position - 1}, already seen"
            )

    async def _stream(self, member: int) -> AsyncGenerator[Sequence[Event], None]:
        """What one member sends, until it stops."""
        closed = asyncio.Event()
        call = self._calls.open_stream(member, WATCH, self._requests(closed))
        try:
            while True:
                with self._calls.closing():
                    # Only our own waiting is timed, not what the caller does with a batch.
                    async with asyncio.timeout(self._calls.timeouts.silence):
                        answer = await call.read()
                if not isinstance(answer, pb.WatchResponse):
                    return  # the end of the stream
                if events := self._take(answer):
                    yield events
        finally:
            closed.set()
            call.cancel()

    async def _requests(self, closed: asyncio.Event) -> AsyncGenerator[pb.WatchRequest, None]:
        create = pb.WatchCreateRequest(
            key=self._key,
            range_end=self._range_end,
            # One earlier than needed: older etcds say nothing of a key that was deleted in the very
            # revision they have compacted to (etcd#18089). So they refuse, and we list again.
            start_revision=max(1, self._position - 1),
            progress_notify=True,
            prev_kv=self._prev,
        )
        yield pb.WatchRequest(create_request=create)
        while not closed.is_set():
            try:
                async with asyncio.timeout(self._calls.timeouts.heartbeat):
                    await closed.wait()
            except TimeoutError:
                yield pb.WatchRequest(progress_request=pb.WatchProgressRequest())

    def _take(self, answer: pb.WatchResponse) -> "Events":
        self._calls.check_cluster(answer.header)
        if answer.compact_revision:
            raise Compacted(f"revisions before {answer.compact_revision} are gone")
        if answer.canceled:  # etcd says so and leaves the stream open
            reason = answer.cancel_reason
            is_denial = "denied" in reason or is_stale_token(reason)
            raise Denied(reason) if is_denial else Unavailable(reason)
        events = Events(answer.events)
        if events and answer.events[0].kv.mod_revision < self._position:
            events = Events([e for e in answer.events if e.kv.mod_revision >= self._position])
        if events:
            self._position = events[-1].kv.mod_revision + 1
        elif not answer.events and not answer.created and answer.watch_id >= 0:
            # etcd's own progress report, in order with the events of this watch.
            self._position = max(self._position, answer.header.revision + 1)
        return events


class Events(Unread):
    """Who wrote them knows what they say, and who did not looks at few of them as a whole."""

    def __init__(self, messages: Sequence[pb.Event]) -> None:
        self.messages = messages
        self._events: list[Event] | None = None

    def __len__(self) -> int:
        return len(self.messages)

    @overload
    def __getitem__(self, index: int) -> Event: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[Event]: ...
    def __getitem__(self, index: int | slice) -> Event | Sequence[Event]:
        if isinstance(index, int) and self._events is None:
            return event_of(self.messages[index])
        return self._all()[index]

    def __iter__(self) -> Iterator[Event]:
        return iter(self._all())

    def _all(self) -> list[Event]:
        if self._events is None:
            self._events = [event_of(message) for message in self.messages]
        return self._events
