"""Requests that wait for a task to move: one line to its broker for all of this process, open while somebody waits.

Who waits holds no connection of the database's. Who is woken looks at its task, and maybe waits on.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from contextlib import asynccontextmanager
from contextvars import Context
from dataclasses import dataclass
from typing import Final, Generic, Protocol, TypeVar
from uuid import UUID

from starlette.requests import ClientDisconnect, Request

from taketurns import telemetry
from taketurns.api import headers
from taketurns.engine.broker import Broker
from taketurns.engine.errors import Unavailable
from taketurns.engine.retry import Backoff
from taketurns.engine.task import Status

State = TypeVar("State")

MOST_WAITING: Final = 500
WATCH_SECONDS: Final = 90.0
RENEW_SECONDS: Final = 60.0
LINGER_SECONDS: Final = 5.0
AFTER_FAILURE: Final = Backoff(first_seconds=0.1, ceiling_seconds=5.0)


@dataclass(frozen=True, slots=True)
class Waited(Generic[State]):
    """What a request that waited has seen at last; `to_the_end` unless it was let go before."""

    state: State
    to_the_end: bool


class Watched(Protocol):
    """A task, wherever it waits, as it stood when it was read."""

    @property
    def company_id(self) -> UUID: ...
    @property
    def id(self) -> UUID: ...
    @property
    def status(self) -> Status: ...
    @property
    def version(self) -> str: ...


SomeTask = TypeVar("SomeTask", bound=Watched)


class Waiting:
    """The requests that wait for tasks of one broker, `most` of them at a time.

    For tasks of one company no more may wait than twice as many as there is room for besides: alone it has two thirds
    of the room, and whoever comes later finds some.
    """

    def __init__(self, broker: Broker, *, most: int = MOST_WAITING) -> None:
        self.broker = broker
        self.is_closed = False
        self.line_is_open = asyncio.Event()
        self.lines_opened = 0
        self.most = most
        self.count = 0
        self.of_company: Counter[UUID] = Counter()
        self.waiters: dict[UUID, set[Waiter]] = {}
        self._listening: asyncio.Task[None] | None = None
        self._log = telemetry.logger("api").bind()

    async def until(
        self,
        request: Request,
        company_id: UUID,
        task_id: UUID,
        *,
        seconds: float,
        read: Callable[[], Awaitable[State]],
        is_enough: Callable[[State], bool],
    ) -> Waited[State]:
        """Read a task until that is enough, each time it moved, for so long at most.

        It is read once and no more when too many wait already, or the process is about to end.
        Raises ClientDisconnect as soon as the client has left, and Unavailable.
        """
        deadline = _now() + seconds
        async with self.waiter(request, company_id, task_id) as waiter:
            if waiter is None:
                return Waited(await read(), to_the_end=False)
            while True:
                try:
                    await waiter.watch(deadline)
                    state = await read()
                except Unavailable:
                    if not await waiter.moved(deadline, at_most=1.0) and waiter.is_over(deadline):
                        raise
                else:
                    if is_enough(state) or not await waiter.moved(deadline):
                        return Waited(state, to_the_end=is_enough(state) or not self.is_closed)

    async def as_preferred(
        self,
        request: Request,
        task: SomeTask,
        told: dict[str, str],
        *,
        read: Callable[[], Awaitable[SomeTask]],
        for_any_change: bool = False,
    ) -> SomeTask:
        """A task once it has ended, or is not as the client has seen it, if the client prefers to wait for that.

        The answer's headers, `told`, get what was done of that. Raises what `until` does.
        """
        seconds = headers.wait_seconds(request.scope)
        if seconds is None:
            return task

        def is_enough(state: SomeTask) -> bool:
            changed = for_any_change and not headers.has_seen(request.scope, state.version)
            return changed or state.status.is_terminal

        waited = Waited(task, to_the_end=True)
        if not is_enough(task):
            waited = await self.until(
                request, task.company_id, task.id, seconds=seconds, read=read, is_enough=is_enough
            )
        if waited.to_the_end:
            told[headers.PREFERENCE_APPLIED] = f"wait={seconds}"
        return waited.state

    @asynccontextmanager
    async def waiter(self, request: Request | None, company_id: UUID, task_id: UUID) -> AsyncIterator[Waiter | None]:
        """One more who waits, until left; None when too many do, of all or of this company, or the process is about to
        end.

        Without a request the caller notices itself when its client leaves.
        """
        if not self.has_room_for(company_id):
            yield None
            return
        waiter = Waiter(self, company_id, task_id)
        self.count += 1
        self.of_company[company_id] += 1
        self.waiters.setdefault(task_id, set()).add(waiter)
        telemetry.REQUESTS_WAITING.inc()
        if self._listening is None:
            self._listening = asyncio.create_task(self._listen(), name="taketurns-changes", context=Context())
        leaving = None if request is None else asyncio.create_task(waiter.notice_leaving(request))
        try:
            yield waiter
        finally:
            if leaving is not None:
                leaving.cancel()
            telemetry.REQUESTS_WAITING.dec()
            self.count -= 1
            self.of_company[company_id] -= 1
            if not self.of_company[company_id]:
                del self.of_company[company_id]
            self.waiters[task_id].discard(waiter)
            if not self.waiters[task_id]:
                del self.waiters[task_id]
            if not self.count:
                asyncio.get_running_loop().call_later(LINGER_SECONDS, self._rest)

    def has_room_for(self, company_id: UUID) -> bool:
        """Whether one more may wait for a task of this company."""
        return not self.is_closed and self.of_company[company_id] < 2 * (self.most - self.count)

    def leave(self) -> None:
        """Let everybody go, at once, and nobody wait any more."""
        self.is_closed = True
        self._wake(self.waiters)

    async def close(self) -> None:
        """Let everybody go and close the line."""
        self.leave()
        listening = self._listening
        self._hang_up()
        if listening is not None:
            await asyncio.gather(listening, return_exceptions=True)

    def _rest(self) -> None:
        if not self.count:
            self._hang_up()

    def _hang_up(self) -> None:
        if self._listening is not None:
            self._listening.cancel()
            self._listening = None
        self.line_is_open.clear()

    async def _listen(self) -> None:
        failures = 0
        while True:
            reason = "the connection ended"
            try:
                async with self.broker.changes() as changes:
                    self.lines_opened += 1
                    self.line_is_open.set()
                    self._wake(self.waiters)  # what moved while there was no line was told to nobody
                    failures = 0
                    async for task_ids in changes:
                        self._wake(task_ids)
            except Exception as error:
                reason = str(error).strip().partition("\n")[0] or repr(error)
            self.line_is_open.clear()
            self._log.warning(telemetry.Event.CHANGES_LOST, error=reason)
            await asyncio.sleep(AFTER_FAILURE.delay(failures))
            failures += 1

    def _wake(self, task_ids: Iterable[UUID]) -> None:
        for task_id in task_ids:
            for waiter in self.waiters.get(task_id, ()):
                waiter.wake()


class Waiter:
    """One request that waits for the moves of one task. Deadlines are by the loop's clock."""

    def __init__(self, waiting: Waiting, company_id: UUID, task_id: UUID) -> None:
        self._waiting = waiting
        self._company_id = company_id
        self._task_id = task_id
        self._woken = asyncio.Event()
        self._has_left = False
        self._line = 0
        self._renew_at = 0.0

    async def watch(self, deadline: float) -> None:
        """Have the next moves told: every one that a read after this does not see. Raises Unavailable."""
        while not self._waiting.line_is_open.is_set():
            if not await self.moved(deadline):
                return
        line, now = self._waiting.lines_opened, _now()
        if line != self._line or now >= self._renew_at:
            await self._waiting.broker.watch(self._company_id, self._task_id, seconds=WATCH_SECONDS)
            self._line, self._renew_at = line, now + RENEW_SECONDS

    async def moved(self, deadline: float, *, at_most: float | None = None) -> bool:
        """Wait until the task may have moved; False when it has not in time, or nobody shall wait any more.

        Raises ClientDisconnect.
        """
        until = deadline if at_most is None else min(deadline, _now() + at_most)
        try:
            if not self._waiting.is_closed and not self._has_left:
                async with asyncio.timeout_at(until):
                    await self._woken.wait()
                self._woken.clear()
        except TimeoutError:
            return False
        if self._has_left:
            raise ClientDisconnect
        return not self._waiting.is_closed

    @property
    def is_told(self) -> bool:
        """Whether the next moves of the task are told."""
        return self._waiting.line_is_open.is_set() and self._line == self._waiting.lines_opened

    def is_over(self, deadline: float) -> bool:
        """Whether there is no more time to wait."""
        return self._waiting.is_closed or _now() >= deadline

    def wake(self) -> None:
        self._woken.set()

    async def notice_leaving(self, request: Request) -> None:
        """Wake up for good when the client leaves. To be run beside, once the request's body was read."""
        while (await request.receive())["type"] != "http.disconnect":
            pass
        self._has_left = True
        self.wake()


def _now() -> float:
    return asyncio.get_running_loop().time()
