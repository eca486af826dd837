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
from typing import Any

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

    def _begin(self, attempt: Attempt, runner: asyncio.Task[None]) -> Awaitable[None] | None:
        """Run a handler until it waits, in a context of its own; answers what is left of it, or None."""
        surroundings = self._surroundings.copy()
        running = attempt.run(runner)
        try:
            waits_for = surroundings.run(running.send, None)
        except StopIteration:
            return None
        return _rest(running, waits_for, surroundings)


class Attempt:
    """One attempt under way."""

    __slots__ = (
        "_asyncio_task",
        "_done",
        "_executor",
        "_is_overdue",
        "_loop",
        "_timer",
        "_type",
        "context",
        "has_ended",
        "is_cancelled",
        "seconds",
        "started_at",
        "task",
    )

    def __init__(self, executor: Executor, task: ClaimedTask, done: Done) -> None:
        self.task = task
        self.is_cancelled = False
        self.started_at = time.monotonic()
        self.seconds = 0.0
        self._executor = executor
        self._done = done
        self._loop = asyncio.get_running_loop()
        self.context = Context(task, timeout_seconds=task.timeout_seconds, budgets=executor.budgets, loop=self._loop)
        self._type: TaskType | None = None
        self._asyncio_task: asyncio.Task[None] | None = None
        self._timer: asyncio.TimerHandle | None = None
        self.has_ended = False
        self._is_overdue = False

    def begin(self) -> None:
        """Call the handler. Only Executor.start does."""
        try:
            self._type = self._executor.registry.get(self.task.type)
            limit = _checked_timeout(self.task.timeout_seconds)
        except (UnknownType, ValueError) as error:
            self._end(Unfit(str(error)))
            return
        if limit is not None:
            self._timer = self._loop.call_later(limit, self._overdue, limit)
        if self._type.is_async:
            self._executor.line_up(self)
        else:
            self._executor.threads.submit(partial(self._run_in_thread, self._type))

    def cancel(self) -> None:
        """Tell the handler to stop: an async one is cancelled, a sync one finds `ctx.cancelled` set."""
        if not self.has_ended:
            self.is_cancelled = True
            self._stop()

    def _stop(self) -> None:
        self.context.cancel()
        if self._asyncio_task is not None:
            self._asyncio_task.cancel()

    async def run(self, runner: asyncio.Task[None]) -> None:
        """Call the async handler, in this asyncio task. Only the executor does."""
        if self._type is not None and not self.has_ended:
            self._asyncio_task = runner
            self._end(await self._called(self._type))

    async def _called(self, type: TaskType) -> Ending:
        if self.context.is_cancelled:
            return Cancelled()
        enter(self.context)
        try:
            arguments = _arguments(type, self.task, self.context)
        except _Unfit as unfit:
            return Unfit(str(unfit))
        try:
            return Returned(await type.handler(**arguments))
        except BaseException as error:  # fault 095: SystemExit and its kin end the attempt, not the worker
            if isinstance(error, GeneratorExit) and not self._loop.is_running():  # it is closed with its loop
                raise
            return Raised(error)

    def _run_in_thread(self, type: TaskType) -> None:
        with suppress(RuntimeError):  # the loop is closed: nobody waits any more
            # Not by way of a variable: an error's traceback leads to this frame, and back to the error (fault 109).
            self._loop.call_soon_threadsafe(self._end, copy_context().run(self._called_in_thread, type))

    def _called_in_thread(self, type: TaskType) -> Ending:
        if self.context.is_cancelled:
            return Cancelled()
        enter(self.context)
        try:
            arguments = _arguments(type, self.task, self.context)
        except _Unfit as unfit:
            return Unfit(str(unfit))
        try:
            return _refuse_awaitable(type.handler(**arguments))
        except BaseException as error:  # fault 095
            return Raised(error)

    def _overdue(self, limit: float) -> None:
        """Past the timeout: tell the handler, tell it again, and at last leave an async one behind."""
        late = time.monotonic() - self.started_at - limit
        if not self._is_overdue:
            self._is_overdue = True
            self._executor.log.warning(Event.TASK_TIMED_OUT, **self.context.log_fields())
        elif self._asyncio_task is not None and late >= self._executor.abandon_after_seconds:  # fault 097
            self._executor.log.error(Event.TASK_ABANDONED, **self.context.log_fields())
            self._executor.abandoned.add(self._asyncio_task)
            self._asyncio_task.add_done_callback(self._executor.abandoned.discard)
            self._end(TimedOut(limit, has_stopped=False))
            return
        self._stop()
        self._timer = self._loop.call_later(NUDGE_SECONDS, self._overdue, limit)

    def _end(self, ending: Ending) -> None:
        if self.has_ended:
            return
        self.has_ended = True
        self._asyncio_task = None
        if self._timer is not None:
            self._timer.cancel()
        self.seconds = time.monotonic() - self.started_at
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


@types.coroutine
def _rest(
    running: Coroutine[Any, Any, None], waits_for: Any, surroundings: contextvars.Context
) -> Generator[Any, Any, None]:
    """What is left of a coroutine that waits, in the context in which it began."""
    while True:
        try:
            try:
                answer = yield waits_for
            except BaseException as error:
                waits_for = surroundings.run(running.throw, error)
            else:
                waits_for = surroundings.run(running.send, answer)
        except StopIteration:
            return
