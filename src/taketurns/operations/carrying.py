"""Carries operations on, a step at a time: looks for the tasks that a filter names, or changes some of those found."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final
from uuid import UUID

import psycopg

from taketurns import telemetry
from taketurns.history import tasks
from taketurns.operations import ledger
from taketurns.operations.ledger import Kind
from taketurns.storage import quotas
from taketurns.storage.database import Database
from taketurns.telemetry import Event

LEASE: Final = timedelta(seconds=15)
STEP_SECONDS: Final = 2.0
MOST: Final = 200
MOST_FOUND: Final = 2_000
IDLE_SECONDS: Final = 2.0
SOON_SECONDS: Final = 0.005
BUSY_SECONDS: Final = 0.5


@dataclass(frozen=True, slots=True)
class Taken:
    """An operation for the length of a step. `filter` is JSON text."""

    company_id: UUID
    id: UUID
    kind: str
    filter: str
    is_matched: bool
    looked_to: UUID | None
    rate: float | None
    is_aborted: bool
    created_at: datetime
    taken_at: datetime


class Carrying:
    """A worker's duty. Any number of workers may have it: a step is one's for a while, a task one's for good.

    A worker that dies leaves its step to others when that while is over.
    """

    name = "operations"

    def __init__(
        self,
        database: Database,
        *,
        announce: Callable[[Iterable[str]], None],
        now: Callable[[], datetime | None] = lambda: None,
    ) -> None:
        self._database = database
        self._announce = announce
        self._now = now
        self._is_carrying = False
        self._log = telemetry.logger("operations").bind()

    async def step(self) -> float:
        rows = await self._database.call("take_operation", LEASE, self._now())
        if not rows:
            return await self._until_next()
        self._is_carrying = True
        taken = Taken(*rows[0])
        if taken.is_matched or taken.is_aborted:
            await self._change(taken)
        else:
            await self._look(taken)
        return 0.0

    async def _until_next(self) -> float:
        """How long nothing is due. It is asked only after a step, so that it costs nothing while there are none."""
        if not self._is_carrying:
            return IDLE_SECONDS
        ((seconds,),) = await self._database.call("seconds_to_next_step", self._now())
        self._is_carrying = seconds is not None
        return IDLE_SECONDS if seconds is None else min(max(seconds, SOON_SECONDS), IDLE_SECONDS)

    async def _look(self, taken: Taken) -> None:
        """Take note of some more of the tasks that the filter names, in the order of their creation."""
        wanted = ledger.matching(
            Kind(taken.kind),
            ledger.read_filter(json.loads(taken.filter)),
            created_before=taken.created_at,
        )
        found = await tasks.ids(self._database, taken.company_id, wanted, limit=MOST_FOUND, after=taken.looked_to)
        await self._database.call(
            "note_matches",
            taken.company_id,
            taken.id,
            taken.looked_to,
            found.next_after,
            found.ids,
            taken.taken_at,
        )

    async def _change(self, taken: Taken) -> None:
        most = MOST if taken.rate is None else max(1, min(MOST, int(taken.rate)))
        until = time.monotonic() + STEP_SECONDS
        rows = (
            [] if taken.is_aborted else await self._database.call("tasks_to_change", taken.company_id, taken.id, most)
        )
        changed = 0
        pause = 0.0
        for (task_id,) in rows:
            try:
                await self._change_one(taken, task_id)
            except psycopg.Error as error:
                if error.sqlstate != quotas.BUSY:
                    raise
                pause = BUSY_SECONDS
                break
            changed += 1
            if time.monotonic() > until:
                break
        if taken.rate is not None:
            pause = max(pause, changed / taken.rate)
        due_at = taken.taken_at + timedelta(seconds=pause)
        ((is_over,),) = await self._database.call(
            "end_step", taken.company_id, taken.id, due_at, MOST_FOUND, self._now()
        )
        if is_over:
            self._log.info(
                Event.OPERATION_OVER,
                company_id=str(taken.company_id),
                operation_id=str(taken.id),
                kind=taken.kind,
                aborted=taken.is_aborted,
            )

    async def _change_one(self, taken: Taken, task_id: UUID) -> None:
        ((queue,),) = await self._database.call("change_task", taken.company_id, taken.id, task_id, self._now())
        if queue is not None:
            self._announce([queue])
