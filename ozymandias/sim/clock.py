"""Virtual time: an asyncio event loop whose clock jumps, and the Clock port on top of it.

When nothing is ready, time moves to the next timer at once: an hour of waiting costs nothing.
Callbacks which are ready at the same instant run in an order drawn from the seed, so that each
seed explores another interleaving and replays it exactly. Nothing here depends on addresses in
memory, hash seeds or the machine's clock; a program that does (iterating over a set of strings,
say) is not deterministic on it either.

There are no sockets and no threads: `run_in_executor` calls in place. Waiting for ever (nothing
ready, no timer) raises Deadlock, and spinning at one instant raises Livelock.
"""

import asyncio
import heapq
import random
from asyncio import events, format_helpers
from collections import deque
from collections.abc import Callable, Coroutine
from contextvars import Context, ContextVar, copy_context
from typing import Any, TypeVar

T = TypeVar("T")

ROUNDS_AT_ONE_INSTANT_MAX = 100_000
ROUNDS_FOR_NOTHING = 200  # at one instant; further ones take a little time each
INSTANT_SECONDS = 1e-6
WALL_START = 1_800_000_000.0

# Which simulated machine's daemon a callback belongs to; tasks and timers inherit it.
MACHINE: ContextVar[str] = ContextVar("machine", default="")


class Deadlock(RuntimeError): ...


class Livelock(RuntimeError): ...


# asyncio keeps tasks in sets (TaskGroup, wait). By default their hash is an address, and the order
# of such a set would differ from run to run; a serial number does not. (Bare futures have no such
# number, for the sake of speed: nobody here puts them in sets.)
class _Task(asyncio.Task[Any]):
    def __init__(self, coro: Coroutine[Any, Any, Any], *, loop: "VirtualLoop", **keys: Any) -> None:
        self._serial = loop.next_serial()
        super().__init__(coro, loop=loop, **keys)

    def __hash__(self) -> int:
        return self._serial


# Handles are made for every step of a task: these are without what asyncio keeps for its debug
# mode (class attributes hide slots of the base), and cancelled is whose callback is gone.
class _Handle(events.Handle):
    __slots__ = ()

    _repr = None
    _source_traceback = None

    def __init__(self, callback: Callable[..., Any], args: Any, context: Context | None) -> None:
        self._callback: Callable[..., Any] | None = callback
        self._args = args
        self._context = copy_context() if context is None else context

    @property
    def _cancelled(self) -> bool:  # type: ignore[override]
        return self._callback is None

    def cancelled(self) -> bool:
        return self._callback is None

    def cancel(self) -> None:
        self._callback, self._args = None, ()

    def __repr__(self) -> str:  # asyncio's own asks the loop, which only timers know here
        return f"<{type(self).__name__} {self.source()}>"

    def source(self) -> str:
        return format_helpers._format_callback_source(self._callback, self._args)


class _Timer(_Handle):
    __slots__ = ("_scheduled", "_when")

    def __init__(
        self,
        when: float,
        callback: Callable[..., Any],
        args: Any,
        loop: "VirtualLoop",
        context: Context | None,
    ) -> None:
        self._callback = callback
        self._args = args
        self._context = copy_context() if context is None else context
        self._loop = loop
        self._when = when
        self._scheduled = True

    def when(self) -> float:
        return self._when

    def cancel(self) -> None:
        if self._scheduled and self._callback is not None:
            self._loop._timer_cancelled_count += 1
        self._callback, self._args = None, ()


class VirtualLoop(asyncio.BaseEventLoop):
    """`VirtualLoop(seed).run(main())`, or `asyncio.Runner(loop_factory=lambda: VirtualLoop(7))`."""

    # What BaseEventLoop keeps for its subclasses.
    _ready: deque[_Handle]
    _stopping: bool
    _closed: bool
    _timer_cancelled_count: int

    def __init__(self, seed: int = 0) -> None:
        super().__init__()
        self.seed = seed
        self.seconds_max = float("inf")  # of virtual time; then it is a Livelock
        self.callbacks = 0  # how many have run: a measure of work, and a fingerprint of the run
        self._dice = random.Random(f"loop {seed}")
        self._now = 0.0
        self._serials = 0
        self._timers: list[tuple[float, int, _Timer]] = []  # a heap, by time and serial number
        self._rounds = 0
        self._frozen: dict[str, tuple[float, list[_Handle]]] = {}
        self.set_task_factory(_make_task)
        self.get_debug = bool  # type: ignore[method-assign]  # False: every future asks

    def run(self, main: Coroutine[Any, Any, T]) -> T:
        """Run to the end, cancel what is left, close the loop."""
        with asyncio.Runner(loop_factory=lambda: self) as runner:
            return runner.run(main)

    def time(self) -> float:
        return self._now

    def next_serial(self) -> int:
        self._serials += 1
        return self._serials

    def create_future(self) -> asyncio.Future[Any]:
        return asyncio.Future(loop=self)

    def call_soon(  # type: ignore[override]
        self, callback: Callable[..., Any], *args: Any, context: Context | None = None
    ) -> _Handle:
        if self._closed:
            raise RuntimeError("Event loop is closed")
        handle = _Handle(callback, args, context)
        self._ready.append(handle)
        return handle

    def call_later(  # type: ignore[override]
        self, delay: float, callback: Callable[..., Any], *args: Any, context: Context | None = None
    ) -> _Timer:
        return self.call_at(self._now + delay, callback, *args, context=context)

    def call_at(  # type: ignore[override]
        self, when: float, callback: Callable[..., Any], *args: Any, context: Context | None = None
    ) -> _Timer:
        if self._closed:
            raise RuntimeError("Event loop is closed")
        timer = _Timer(when, callback, args, self, context)
        self._serials += 1
        heapq.heappush(self._timers, (when, self._serials, timer))
        return timer

    def _push(self, timer: _Timer) -> None:
        self._serials += 1
        heapq.heappush(self._timers, (timer._when, self._serials, timer))

    def run_in_executor(  # type: ignore[override]
        self, executor: Any, func: Callable[..., T], *args: Any
    ) -> asyncio.Future[T]:
        future = self.create_future()
        try:
            future.set_result(func(*args))
        except Exception as error:
            future.set_exception(error)
        return future

    def _run_once(self) -> None:
        """One round of the loop; BaseEventLoop.run_forever calls it until stop()."""
        ready, timers = self._ready, self._timers
        if not ready and not self._stopping:
            self._forget_cancelled_timers()
            if not timers:
                raise Deadlock(self._who_waits())
            when = timers[0][0]
            if when - self._now > INSTANT_SECONDS:
                self._rounds = 0
            if when > self._now:
                self._now = when
        while timers and timers[0][0] <= self._now:
            timer = heapq.heappop(timers)[2]
            timer._scheduled = False
            ready.append(timer)
        self._rounds += 1
        if self._rounds > ROUNDS_FOR_NOTHING:
            # On a clock with another rate, what is left of a sleep may be too short to be added.
            self._now += INSTANT_SECONDS
        if self._now > self.seconds_max:
            raise Livelock(f"still not over at {self._now:.0f} s: {self._who_waits()}")
        if self._rounds > ROUNDS_AT_ONE_INSTANT_MAX:
            raise Livelock(f"time stands still at {self._now}: {list(ready)[:5]}")
        handles = list(ready)
        ready.clear()
        if len(handles) > 1:
            _shuffle(handles, self._dice)
        self.callbacks += len(handles)
        if self._frozen:
            handles = self._without_frozen(handles)
        for handle in handles:
            callback = handle._callback
            if callback is not None:
                try:
                    handle._context.run(callback, *handle._args)
                except (SystemExit, KeyboardInterrupt):
                    raise
                except BaseException as error:
                    self._tell_of(error, handle)

    def _tell_of(self, error: BaseException, handle: _Handle) -> None:
        message = f"Exception in callback {handle.source()}"
        self.call_exception_handler({"message": message, "exception": error, "handle": handle})

    # A daemon that does not get to run ----------------------------------------------------------

    def freeze(self, machine: str) -> None:
        """As SIGSTOP: nothing of that machine's daemon runs until `thaw`."""
        self._frozen.setdefault(machine, (self._now, []))

    def is_frozen(self, machine: str) -> bool:
        return machine in self._frozen

    def thaw(self, machine: str, *, slept: bool = False) -> None:
        """It goes on where it was; what was due meanwhile is due now.

        ``slept``: the machine was suspended, and the clock behind timers had stood still, so what
        was not due yet when it fell asleep is due that much later. (CLOCK_BOOTTIME went on.)
        """
        since, handles = self._frozen.pop(machine, (self._now, []))
        late = self._now - since if slept else 0.0
        if late:
            timers, self._timers = self._timers, []
            delayed = [h for h in handles if isinstance(h, _Timer)]
            for _, _, timer in sorted(timers, key=lambda entry: entry[:2]):
                if _machine_of(timer) == machine:
                    delayed.append(timer)
                else:
                    self._push(timer)
            for timer in delayed:
                timer._when += late
                timer._scheduled = True
                self._push(timer)
            handles = [h for h in handles if not isinstance(h, _Timer)]
        self._ready.extend(handles)

    def _without_frozen(self, handles: list[_Handle]) -> list[_Handle]:
        awake: list[_Handle] = []
        for handle in handles:
            held = self._frozen.get(_machine_of(handle))
            (held[1] if held else awake).append(handle)
        return awake

    def _forget_cancelled_timers(self) -> None:
        timers = self._timers
        if self._timer_cancelled_count > 100 and self._timer_cancelled_count * 2 > len(timers):
            timers[:] = [entry for entry in timers if entry[2]._callback is not None]
            heapq.heapify(timers)
            self._timer_cancelled_count = 0
        while timers and timers[0][2]._callback is None:
            self._timer_cancelled_count -= 1
            heapq.heappop(timers)

    def _who_waits(self) -> str:
        names = sorted(task.get_name() for task in asyncio.all_tasks(self))
        return f"nothing is ready and no timer is set; waiting for ever: {', '.join(names)}"

    def _write_to_self(self) -> None:
        """Called by call_soon_threadsafe to wake a selector; there is none."""

    def _process_events(self, event_list: object) -> None:
        """There are no file descriptors."""


def _shuffle(handles: list[_Handle], dice: random.Random) -> None:
    """As Random.shuffle does, for lists so short that a plain product is even enough."""
    draw = dice.random
    for last in range(len(handles) - 1, 0, -1):
        other = int(draw() * (last + 1))
        handles[last], handles[other] = handles[other], handles[last]


def _machine_of(handle: _Handle) -> str:
    return handle._context.get(MACHINE, "")


def _make_task(loop: asyncio.AbstractEventLoop, coro: Any, **keys: Any) -> _Task:
    assert isinstance(loop, VirtualLoop)
    return _Task(coro, loop=loop, **keys)


class Deadline:
    """`with Deadline(5):` raises TimeoutError then, as asyncio.timeout does, for half the price."""

    __slots__ = ("_cancelling", "_is_over", "_seconds", "_task", "_timer")

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._is_over = False

    def __enter__(self) -> None:
        loop = asyncio.get_running_loop()
        task = asyncio.current_task(loop)
        assert task is not None
        self._task, self._cancelling = task, task.cancelling()
        self._timer = loop.call_later(self._seconds, self._end)

    def _end(self) -> None:
        self._is_over = True
        self._task.cancel()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, _: object
    ) -> None:
        self._timer.cancel()
        if self._is_over:
            is_ours = self._task.uncancel() <= self._cancelling
            if is_ours and kind is asyncio.CancelledError:
                raise TimeoutError from error


class SimClock:
    """The Clock port on a loop's time; each simulated host may have a clock that is off.

    ``drift`` 0.01 runs 1 % fast. ``suspend`` adds what a machine slept through.
    """

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        seed: int = 0,
        *,
        wall_offset: float = 0.0,
        boot_offset: float = 0.0,
        drift: float = 0.0,
    ) -> None:
        self._loop = loop
        self._random = random.Random(f"clock {seed}")
        self._wall_start = WALL_START + wall_offset - loop.time()
        self._boot_start = boot_offset
        self._rate = 1.0 + drift

    def wall(self) -> float:
        return self._wall_start + self._loop.time()

    def boot(self) -> float:
        return self._boot_start + self._loop.time() * self._rate

    @property
    def random(self) -> random.Random:
        return self._random

    def step_wall(self, seconds: float) -> None:
        """As somebody setting the clock, or NTP, would."""
        self._wall_start += seconds

    def suspend(self, seconds: float) -> None:
        """The machine slept: CLOCK_BOOTTIME counts it, the loop's timers do not."""
        self._boot_start += seconds
        self._wall_start += seconds
