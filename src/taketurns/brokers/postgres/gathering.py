"""Single tasks that are submitted while another of their company is under way go together, as one batch would.

The lone one waits for nobody. Of many at once each shares the statement, the commit and the round trip with the others:
see decisions/0026.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

from taketurns.engine.errors import Busy, InvalidData, QueueFull, QuotaExceeded
from taketurns.engine.task import Enqueued, NewTask

MOST_TOGETHER: Final = 100
LARGEST_PAYLOAD: Final = 16 * 1024  # characters; what is larger goes by itself


@dataclass(frozen=True, slots=True)
class Submission:
    """A task, where it comes from, and when it came, by the loop's clock."""

    task: NewTask
    request_id: str | None
    traceparent: str | None
    came_at: float = field(default_factory=lambda: asyncio.get_running_loop().time())


Send = Callable[[str, Sequence[Submission]], Awaitable[list[Enqueued]]]
Waiting = tuple[Submission, asyncio.Future[Enqueued]]


def may_go_together(tasks: Sequence[NewTask]) -> bool:
    """Whether this is one task that stands in nobody's way and shares no key with another."""
    if len(tasks) != 1:
        return False
    (task,) = tasks
    return task.idempotency_key is None and task.unique is None and len(task.payload) <= LARGEST_PAYLOAD


class Gathering:
    """What is submitted by one process, for each company one statement at a time.

    Who has waited for longer than `patience_seconds` is not sent any more, so that a server that stands still lets no
    line grow in which everybody waits for all before it to fail.
    """

    def __init__(self, send: Send, *, patience_seconds: float) -> None:
        self._send = send
        self._patience_seconds = patience_seconds
        self._waiting: dict[str, deque[Waiting]] = {}  # of the companies for which something is under way
        self._sending: set[asyncio.Task[None]] = set()

    async def enqueue(self, company: str, submission: Submission) -> Enqueued:
        """Submit it now, or with others once what is under way for its company has come back."""
        if (waiting := self._waiting.get(company)) is not None:
            made: asyncio.Future[Enqueued] = asyncio.get_running_loop().create_future()
            waiting.append((submission, made))
            return await made
        self._waiting[company] = deque()
        try:
            return await self._send_alone(company, submission)
        finally:
            self._go_on(company)

    def _go_on(self, company: str) -> None:
        waiting = self._waiting[company]
        self._refuse_overdue(waiting)
        together: list[Waiting] = []
        while waiting and len(together) < MOST_TOGETHER:
            submission, made = waiting.popleft()
            if not made.done():  # or whoever waited has given up
                together.append((submission, made))
        if not together:
            del self._waiting[company]
            return
        sending = asyncio.create_task(self._send_together(company, together), name="enqueue together")
        self._sending.add(sending)
        sending.add_done_callback(self._sending.discard)

    def _refuse_overdue(self, waiting: deque[Waiting]) -> None:
        latest = asyncio.get_running_loop().time() - self._patience_seconds
        while waiting and waiting[0][0].came_at < latest:
            _, made = waiting.popleft()
            if not made.done():
                made.set_exception(Busy())

    async def _send_together(self, company: str, together: Sequence[Waiting]) -> None:
        try:
            made = await self._send(company, [submission for submission, _ in together])
        except (QuotaExceeded, QueueFull, InvalidData) as error:
            if len(together) > 1:  # it may be one of them, or the last of them, that is too much
                await self._send_in_turn(company, together)
            else:
                _fail(together, error)
        except BaseException as error:
            _fail(together, error)
            if not isinstance(error, Exception):
                raise
        else:
            for enqueued in made:
                _answer(together[enqueued.position], replace(enqueued, position=0))
        finally:
            self._go_on(company)

    async def _send_in_turn(self, company: str, together: Sequence[Waiting]) -> None:
        """One after another. What fails for another reason than its own data fails for all that are left."""
        for position, (submission, made) in enumerate(together):
            if made.done():
                continue
            try:
                _answer(together[position], await self._send_alone(company, submission))
            except InvalidData as error:
                _fail([together[position]], error)
            except Exception as error:
                _fail(together[position:], error)
                return

    async def _send_alone(self, company: str, submission: Submission) -> Enqueued:
        (made,) = await self._send(company, [submission])
        return made


def _answer(waiting: Waiting, enqueued: Enqueued) -> None:
    _, made = waiting
    if not made.done():
        made.set_result(enqueued)


def _fail(together: Sequence[Waiting], error: BaseException) -> None:
    for _, made in together:
        if made.done():
            continue
        if isinstance(error, asyncio.CancelledError):
            made.cancel()
        else:
            made.set_exception(error)
