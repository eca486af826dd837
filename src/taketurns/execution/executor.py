"""Calls handlers: async ones on the loop, sync ones in threads, each within its timeout.

An attempt ends when its handler has returned. One past its timeout is told to stop and keeps its slot until it has,
so that a retry never runs beside it; only an async handler that goes on catching its cancellation is left behind.
"""

from __future__ import annotations

import asyncio
import contextvars
import inspect
import math
import time
import types
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine, Generator
from contextlib import suppress
from contextvars import copy_context
from functools import partial
from types import CoroutineType
from typing import Any, NamedTuple

import pydantic_core
from structlog.typing import FilteringBoundLogger

from taketurns import telemetry
from taketurns.engine import limits
from taketurns.engine.budget import Budgets
from taketurns.engine.errors import Fail, OverBudget, Retry, UnknownType
from taketurns.engine.registry import Registry, TaskType
from taketurns.engine.retry import Backoff
from taketurns.engine.task import ClaimedTask, Report
from taketurns.execution import outcome
from taketurns.execution.context import Context, enter
from taketurns.execution.outcome import Cancelled, Ending, Raised, Returned, TimedOut, Unfit
from taketurns.execution.threads import Threads
from taketurns.telemetry import Event

Done = Callable[["Attempt", Report], None]

NUDGE_SECONDS = 1.0
LINE_SECONDS = 0.005  # how long handlers that do not wait run one after another before the loop has its turn


class Executor:
    """Runs attempts of the registry's types, in one event loop.

    `threads` bounds the sync handlers that run at once; `budgets` is where theirs are kept, in the same loop. An async
    handler that does not stop is left behind `abandon_after_seconds` after its timeout.
    """

    def __init__(
        self,
        registry: Registry,
        *,
        threads: int = 16,
        abandon_after_seconds: float = 5.0,
        budgets: Budgets | None = None,
    ) -> None:
        self.registry = registry
        self.budgets = budgets
        self.threads = Threads(threads)
        self.abandon_after_seconds = abandon_after_seconds
        self.abandoned: set[asyncio.Task[None]] = set()
        self._surroundings = copy_context()  # an attempt is begun by the end of another, and must see nothing of it
        self._line: deque[Attempt] = deque()
        self._runner: asyncio.Task[None] | None = None
        self._returned: deque[tuple[Attempt, Ending]] = deque()
        self._is_woken = False
        self.log: FilteringBoundLogger = telemetry.logger("execution").bind()

    async def execute(self, task: ClaimedTask) -> Report:
        """Run one attempt to its end; when the caller is cancelled, so is the attempt."""
        ended: asyncio.Future[Report] = asyncio.get_running_loop().create_future()

        def done(_: Attempt, report: Report) -> None:
            if not ended.done():
                ended.set_result(report)

        attempt = self.start(task, done)
        try:
            return await ended
        except asyncio.CancelledError:
            attempt.cancel()
            raise

    def start(self, task: ClaimedTask, done: Done) -> Attempt:
        """Begin an attempt; `done` is called in the loop, once, maybe before this returns. Never raises."""
        attempt = Attempt(self, task, done)
        attempt.begin()
        return attempt

    def line_up(self, attempt: Attempt) -> None:
        """Have the handler of an attempt begun soon, after those that came before."""
        self._line.append(attempt)
        if self._runner is None:
            self._runner = self._new_runner()

    def run_in_thread(self, attempt: Attempt) -> None:
        """Have the handler of an attempt called in a thread soon."""
        loop = asyncio.get_running_loop()
        self.threads.submit(partial(self._run_in_thread, attempt, loop))

    def close(self) -> None:
        """Let the threads end. Attempts should have."""
        self.threads.close()

    def _new_runner(self) -> asyncio.Task[None]:
        return asyncio.get_running_loop().create_task(self._run_line(), context=self._surroundings.copy())

    async def _run_line(self) -> None:
        """Run handlers one after another as long as they do not wait. One that waits keeps this asyncio task, and so
        does one that has cancelled it; the others go on in a new one."""
        runner = asyncio.current_task()
        assert runner is not None  # noqa: S101
        until = time.monotonic() + LINE_SECONDS
        rest = None
        try:
            while self._line and rest is None and not runner.cancelling() and time.monotonic() < until:
                rest = self._begin(self._line.popleft(), runner)
        finally:
            self._runner = self._new_runner() if self._line else None
        if rest is not None:
            await rest

    def _run_in_thread(self, attempt: Attempt, loop: asyncio.AbstractEventLoop) -> None:
        # Not by way of a variable: an error's traceback leads to this frame, and back to the error (fault 109).
        self._returned.append((attempt, copy_context().run(attempt.call_in_thread)))
        if not self._is_woken:
            self._is_woken = True
            with suppress(RuntimeError):  # the loop is closed: nobody waits any more
                loop.call_soon_threadsafe(self._end_returned)

    def _end_returned(self) -> None:
        """One wake-up of the loop is for all that have returned by then."""
        self._is_woken = False
        while self._returned:
            attempt, ending = self._returned.popleft()
            attempt.end(ending)

    def _begin(self, attempt: Attempt, runner: asyncio.Task[None]) -> Awaitable[None] | None:
        """Run a handler until it waits, in a context of its own; answers what is left of it, or None."""
        surroundings = self._surroundings.copy()
        # Not by way of a variable: an error's traceback leads to this frame, and back to the error (fault 109).
        return attempt.go_on(surroundings.run(attempt.call, runner), surroundings)


class Attempt:
    """One attempt under way."""

    __slots__ = (
        "_asyncio_task",
        "_done",
        "_executor",
        "_is_overdue",
        "_limit",
        "_loop",
        "_timer",
        "_type",
        "context",
        "has_ended",
        "is_cancelled",
        "seconds",
        "task",
    )

    def __init__(self, executor: Executor, task: ClaimedTask, done: Done) -> None:
        self.task = task
        self.is_cancelled = False
        self.has_ended = False
        self.seconds = 0.0
        self._executor = executor
        self._done = done
        self._loop = asyncio.get_running_loop()
        self.context = Context(task, executor.budgets, self._loop)
        self._type: TaskType | None = None
        self._limit: float | None = None
        self._asyncio_task: asyncio.Task[None] | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._is_overdue = False

    def begin(self) -> None:
        """Have the handler called. Only Executor.start does."""
        try:
            self._type = self._executor.registry.get(self.task.type)
            self._limit = _checked_timeout(self.task.timeout_seconds)
        except (UnknownType, ValueError) as error:
            self.end(Unfit(str(error)))
            return
        if self._type.is_async:
            self._executor.line_up(self)
        else:
            self._time()
            self._executor.run_in_thread(self)

    def cancel(self) -> None:
        """Tell the handler to stop: an async one is cancelled, a sync one finds `ctx.cancelled` set."""
        if not self.has_ended:
            self.is_cancelled = True
            self._stop()

    def _stop(self) -> None:
        self.context.cancel()
        if self._asyncio_task is not None:
            self._asyncio_task.cancel()

    def call(self, runner: asyncio.Task[None]) -> Ending | _Waiting:
        """Call the async handler, in this asyncio task, until it waits. Only the executor does."""
        self._asyncio_task = runner
        arguments = self._entered()
        if not isinstance(arguments, dict):
            return arguments
        try:
            called = self._handler(**arguments)
            if type(called) is not CoroutineType:
                called = _awaited(called)
            return _Waiting(called, called.send(None))
        except StopIteration as stop:
            return Returned(stop.value)
        except BaseException as error:  # fault 095: SystemExit and its kin end the attempt, not the worker
            return Raised(error)

    def go_on(self, come_to: Ending | _Waiting, surroundings: contextvars.Context) -> Awaitable[None] | None:
        """Report how the handler ended; or answer what is left of one that waits. Only the executor does."""
        if isinstance(come_to, _Waiting):
            return self._rest(come_to, surroundings)
        self.end(come_to)
        return None

    async def _rest(self, waiting: _Waiting, surroundings: contextvars.Context) -> None:
        """Go on with an async handler that waits, to its end."""
        self._time()
        try:
            value = await _resumed(waiting, surroundings)
        except BaseException as error:  # fault 095
            if isinstance(error, GeneratorExit) and not self._loop.is_running():  # it is closed with its loop
                raise
            self.end(Raised(error))
        else:
            self.end(Returned(value))

    def call_in_thread(self) -> Ending:
        """Call the sync handler, in this thread. Only the executor does."""
        arguments = self._entered()
        if not isinstance(arguments, dict):
            return arguments
        try:
            return _refuse_awaitable(self._handler(**arguments))
        except BaseException as error:  # fault 095
            return Raised(error)

    def _entered(self) -> dict[str, Any] | Ending:
        """The arguments of the handler, which begins; or how the attempt has ended without it."""
        if self.context.is_cancelled:
            return Cancelled()
        enter(self.context)
        assert self._type is not None  # noqa: S101
        try:
            return _arguments(self._type, self.task, self.context)
        except _Unfit as unfit:
            return Unfit(str(unfit))

    @property
    def _handler(self) -> Callable[..., Any]:
        assert self._type is not None  # noqa: S101
        return self._type.handler

    def _time(self) -> None:
        """Begin to watch the time that the handler has. One that never waits cannot be stopped, and needs none."""
        if self._limit is not None:
            left = self.context.began_at + self._limit - time.monotonic()
            self._timer = self._loop.call_later(left, self._overdue, self._limit)

    def _overdue(self, limit: float) -> None:
        """Past the timeout: tell the handler, tell it again, and at last leave an async one behind."""
        late = time.monotonic() - self.context.began_at - limit
        if not self._is_overdue:
            self._is_overdue = True
            self._executor.log.warning(Event.TASK_TIMED_OUT, **self.context.log_fields())
        elif self._asyncio_task is not None and late >= self._executor.abandon_after_seconds:  # fault 097
            self._executor.log.error(Event.TASK_ABANDONED, **self.context.log_fields())
            self._executor.abandoned.add(self._asyncio_task)
            self._asyncio_task.add_done_callback(self._executor.abandoned.discard)
            self.end(TimedOut(limit, has_stopped=False))
            return
        self._stop()
        self._timer = self._loop.call_later(NUDGE_SECONDS, self._overdue, limit)

    def end(self, ending: Ending) -> None:
        """Report how it ended, unless that was done."""
        if self.has_ended:
            return
        self.has_ended = True
        self._asyncio_task = None
        if self._timer is not None:
            self._timer.cancel()
        self.seconds = time.monotonic() - self.context.began_at
        self._done(self, self._report(self._judged(ending)))

    def _judged(self, ending: Ending) -> Ending:
        """What counts when the handler was told to stop: it is what a handler raises then that is not its own."""
        if self._is_overdue and not isinstance(ending, TimedOut):
            return TimedOut(self.task.timeout_seconds or 0)  # fault 099: a TimeoutError of the handler's own is not one
        if self.is_cancelled and isinstance(ending, Raised) and not isinstance(ending.error, Fail | Retry | OverBudget):
            return Cancelled()
        return ending

    def _report(self, ending: Ending) -> Report:
        backoff = self._type.backoff if self._type is not None else Backoff()
        try:
            return outcome.report(self.task, ending, backoff=backoff)
        except BaseException as error:  # what a result's own code raises as it is written must not cost the hand
            return outcome.report(self.task, Raised(error), backoff=backoff)


class _Unfit(Exception):
    """The task's row makes no call of its handler."""


def _arguments(type: TaskType, task: ClaimedTask, context: Context) -> dict[str, Any]:
    """The handler's arguments. Raises _Unfit for a payload that makes none: fault 078."""
    try:
        payload = pydantic_core.from_json(task.payload)  # unlike others, keeps whole numbers past 64 bits whole
        if not isinstance(payload, dict):
            raise _Unfit("the payload is not a JSON object")
        arguments = type.validate(payload)
    except _Unfit:
        raise
    except Exception as error:  # a validator of the application's own may raise anything
        raise _Unfit(str(error)) from error
    if type.context_parameter is not None:
        arguments[type.context_parameter] = context
    return arguments


def _checked_timeout(seconds: float | None) -> float | None:
    if seconds is None or seconds == math.inf:
        return None
    if not seconds > 0:
        raise ValueError(f"timeout_seconds must be above 0, not {seconds:g}")
    return min(seconds, limits.TIMEOUT_SECONDS_MAX)


def _refuse_awaitable(value: object) -> Ending:
    if inspect.iscoroutine(value):
        value.close()
        return Raised(TypeError("the handler returned a coroutine: define it with `async def`"))
    return Returned(value)


class _Waiting(NamedTuple):
    """A coroutine that waits, and what for."""

    coroutine: Coroutine[Any, Any, Any]
    waits_for: Any


async def _awaited(called: Awaitable[Any]) -> Any:
    """What a handler answers that only says that it is async, as a coroutine."""
    return await called


@types.coroutine
def _resumed(waiting: _Waiting, surroundings: contextvars.Context) -> Generator[Any, Any, Any]:
    """The rest of a coroutine that waits, in the context in which it began; answers what it returns."""
    coroutine, waits_for = waiting
    while True:
        try:
            try:
                answer = yield waits_for
            except BaseException as error:
                waits_for = surroundings.run(coroutine.throw, error)
            else:
                waits_for = surroundings.run(coroutine.send, answer)
        except StopIteration as stop:
            return stop.value
