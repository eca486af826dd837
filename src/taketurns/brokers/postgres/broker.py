"""The PostgreSQL broker: each verb is one call of the function in the `.sql` file of its name.

What is asked for in a company's name is asked of the database of that company.
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager, contextmanager
from datetime import datetime, timedelta
from functools import cache
from typing import Any, Final
from uuid import UUID, uuid4

import psycopg
from psycopg import AsyncConnection, sql

from taketurns.brokers.postgres import leases, wakeups
from taketurns.brokers.postgres.gathering import Gathering, Submission, may_go_together
from taketurns.engine import orders
from taketurns.engine.errors import (
    IdempotencyConflict,
    QueueFull,
    QuotaBusy,
    QuotaExceeded,
    UniqueKeyTaken,
    UnknownCompany,
)
from taketurns.engine.orders import Asked, Wanted
from taketurns.engine.quota import Allowance
from taketurns.engine.retention import Retention
from taketurns.engine.task import (
    Claimed,
    ClaimedTask,
    Enqueued,
    NewTask,
    Promoted,
    Pruned,
    Report,
    Rescued,
    Status,
)
from taketurns.storage import quotas
from taketurns.storage.arrays import Texts, Uuids, texts_or_none
from taketurns.storage.database import Database, Row, call
from taketurns.storage.ids import new_id

KEY_TAKEN: Final = "TQ003"


class PostgresBroker:
    """Where tasks wait durably. Wake-ups are sent after commit, a few milliseconds' worth in one."""

    def __init__(
        self,
        database: Database,
        *,
        listen_url: str | None = None,
        key_lifetime: timedelta = timedelta(hours=24),
        make_token: Callable[[], UUID] = uuid4,
    ) -> None:
        self.database = database
        self.key_lifetime = key_lifetime
        self._listen_url = listen_url or database.url
        self._make_token = make_token
        self.notifier = wakeups.Notifier(database)
        self._gathering = Gathering(self._enqueue_together, patience_seconds=database.statement_timeout)

    async def enqueue(
        self,
        company: str,
        tasks: Sequence[NewTask],
        *,
        request_id: str | None = None,
        traceparent: str | None = None,
        at: datetime | None = None,
    ) -> list[Enqueued]:
        if at is None and may_go_together(tasks):
            return [await self._gathering.enqueue(company, Submission(tasks[0], request_id, traceparent))]
        return await self._enqueue(company, tasks, request_id=request_id, traceparent=traceparent, at=at)

    async def _enqueue_together(self, company: str, submissions: Sequence[Submission]) -> list[Enqueued]:
        return await self._enqueue(
            company,
            [submission.task for submission in submissions],
            request_id=[submission.request_id for submission in submissions],
            traceparent=[submission.traceparent for submission in submissions],
        )

    async def _enqueue(
        self,
        company: str,
        tasks: Sequence[NewTask],
        *,
        request_id: str | Sequence[str | None] | None,
        traceparent: str | Sequence[str | None] | None,
        at: datetime | None = None,
    ) -> list[Enqueued]:
        arguments = enqueue_arguments(
            company, tasks, key_lifetime=self.key_lifetime, request_id=request_id, traceparent=traceparent, at=at
        )
        with _unknown(company):
            rows = await self.database.of(company).call("enqueue", *arguments)
        enqueued = enqueued_tasks(rows, of=len(tasks))
        self.notifier.announce(tasks[task.position].queue for task in enqueued if task.status is Status.PENDING)
        return enqueued

    async def begin(
        self, company: str, task: NewTask, worker_id: UUID, *, at: datetime | None = None
    ) -> tuple[Enqueued, ClaimedTask | None]:
        """Enqueue a task that is in this worker's hand from the first; see brokers/inline.py."""
        token = self._make_token()
        async with self.database.connection() as connection:
            (made,) = await self.enqueue_on(connection, company, [task], at=at, held_by=(worker_id, token))
        return made, None if made.created_at is None else _begun(task, made, made.created_at, token)

    async def enqueue_on(
        self,
        connection: AsyncConnection[Any],
        company: str,
        tasks: Sequence[NewTask],
        *,
        request_id: str | None = None,
        traceparent: str | None = None,
        at: datetime | None = None,
        held_by: tuple[UUID, UUID] | None = None,
    ) -> list[Enqueued]:
        """Enqueue on a connection of the caller's, in its transaction; no wake-up is sent.

        `held_by`, a worker's id and a claim's token, says in whose hand the tasks are from the first.
        """
        arguments = enqueue_arguments(
            company, tasks, key_lifetime=self.key_lifetime, request_id=request_id, traceparent=traceparent, at=at
        )
        if held_by is not None:
            arguments += (None, *held_by)
        with _unknown(company):
            rows = await call(connection, self.database.schema, "enqueue", *arguments)
        return enqueued_tasks(rows, of=len(tasks))

    async def claim(
        self,
        worker_id: UUID,
        *,
        queues: Sequence[str],
        batch: int,
        skipped_types: Sequence[str] = (),
        at: datetime | None = None,
    ) -> Claimed:
        token = self._make_token()
        rows = await self.database.call("claim", worker_id, list(queues), batch, token, list(skipped_types), at)
        again_at = rows.pop()[-1] if rows and rows[-1][-1] is not None else None
        return Claimed([ClaimedTask._make((*row[:-1], token)) for row in rows], again_at=again_at)

    async def settle(self, reports: Sequence[Report], *, at: datetime | None = None) -> set[UUID]:
        ordered = sorted(reports, key=lambda report: _order(report.task))
        ((settled,),) = await self.database.run(
            _settle_statement(self.database.schema),
            (
                len(ordered),
                *_named([report.task for report in ordered]),
                Texts([report.outcome for report in ordered]),
                texts_or_none([report.result for report in ordered]),
                texts_or_none([report.error for report in ordered]),
                _seconds(report.delay_seconds for report in ordered),
                at,
            ),
            binary=True,
        )
        return {report.task.task_id for report in ordered} if settled is None else set(settled)

    async def release(self, tasks: Sequence[ClaimedTask], *, at: datetime | None = None) -> set[UUID]:
        ordered = sorted(tasks, key=_order)
        rows = await self.database.call("release", *_named(ordered), at)
        self.notifier.announce(task.queue for task in ordered)
        return {task_id for _, task_id in rows}

    async def rescue(
        self, worker_id: UUID, *, watched_beat: int | None, max_rescues: int, at: datetime | None = None
    ) -> list[Rescued]:
        rescued = [
            Rescued(*row) for row in await self.database.call("rescue", worker_id, watched_beat, max_rescues, at)
        ]
        self.notifier.announce(task.queue for task in rescued if not task.failed)
        return rescued

    def lease_line(self, *, patience_seconds: float) -> leases.PostgresLease:
        return leases.PostgresLease(self.database.url, schema=self.database.schema, patience_seconds=patience_seconds)

    async def order(self, worker: UUID | str, wanted: Wanted) -> Asked:
        asked = await leases.order(self.database, worker, wanted)
        self.notifier.announce([orders.WAKE] if asked.processes else ())
        return asked

    async def beats(self) -> dict[UUID, int | None]:
        return dict(await self.database.fetch(leases.BEATS))

    async def overdue(self, *, seconds: float, at: datetime | None = None) -> set[UUID]:
        return {worker_id for worker_id, _ in await self.database.fetch(leases.overdue(seconds, at))}

    async def held(self, worker_id: UUID) -> list[ClaimedTask]:
        return [leases.held(row) for row in await self.database.fetch(leases.HELD_BY, holder=worker_id)]

    async def promote(self, *, most: int = 1_000, at: datetime | None = None) -> Promoted:
        ((count, queues, next_due),) = await self.database.call("promote", most, at)
        self.notifier.announce(queues or ())
        return Promoted(count, tuple(queues or ()), next_due)

    async def cancel(self, company: str, task_id: UUID, *, at: datetime | None = None) -> Status | None:
        ((status,),) = await self.database.of(company).call("cancel", company, task_id, at)
        return Status(status) if status else None

    async def retry(self, company: str, task_id: UUID, *, at: datetime | None = None) -> Status | None:
        try:
            with quotas.refusals():
                ((status, queue),) = await self.database.of(company).call("retry", company, task_id, at)
        except psycopg.Error as error:
            if error.sqlstate == KEY_TAKEN:
                raise UniqueKeyTaken({0: UUID(error.diag.message_detail)}) from None
            raise
        if queue:
            self.notifier.announce((queue,))
        return Status(status) if status else None

    async def reschedule(
        self, company: str, task_id: UUID, *, run_after: datetime, at: datetime | None = None
    ) -> Status | None:
        """Put a task that waits off to a time, or bring it forward; answers the status it had, or None."""
        ((status,),) = await self.database.of(company).call("reschedule", company, task_id, run_after, at)
        return Status(status) if status else None

    async def delete(self, company: str, task_id: UUID) -> Status | None:
        """Forget a task that has ended; answers the status it had, or None."""
        ((status,),) = await self.database.of(company).call("delete_task", company, task_id)
        return Status(status) if status else None

    async def prune(self, keep: Retention, *, most: int = 1_000, at: datetime | None = None) -> Pruned:
        ((tasks, keys, has_more),) = await self.database.call(
            "prune", keep.completed, keep.failed, keep.cancelled, most, at
        )
        return Pruned(tasks, keys, has_more=has_more)

    async def heal(self) -> int:
        ((lines,),) = await self.database.call("heal_rotation")
        ((turns,),) = await self.database.call("heal_turns")
        await self.database.call("let_schedules_go_on")
        return int(lines) + int(turns)

    async def park(
        self, types: Sequence[str], *, queues: Sequence[str], most: int = 1_000, at: datetime | None = None
    ) -> dict[str, int]:
        return dict(await self.database.call("park", list(types), list(queues), most, at))

    async def unpark(self, *, most: int = 1_000, at: datetime | None = None) -> int:
        ((count, queues),) = await self.database.call("unpark", most, at)
        self.notifier.announce(queues)
        return int(count)

    def wakeups(self) -> AbstractAsyncContextManager[AsyncIterator[frozenset[str]]]:
        return wakeups.listen(self._listen_url, channel=wakeups.channel(self.database.schema))

    async def watch(self, company_id: UUID, task_id: UUID, *, seconds: float) -> None:
        database = self.database.of(company_id)
        await database.call("watch", company_id, task_id, seconds)
        await database.call("wait_for_move", company_id, task_id)

    @asynccontextmanager
    async def changes(self) -> AsyncIterator[AsyncIterator[frozenset[UUID]]]:
        channel = wakeups.moves_channel(self.database.schema)
        async with wakeups.listen(self._listen_url, channel=channel) as notices:
            yield (frozenset(map(UUID, ids)) async for ids in notices)


@contextmanager
def _unknown(company: str) -> Iterator[None]:
    """Raises UnknownCompany when PostgreSQL knows none of this id or slug."""
    try:
        yield
    except psycopg.errors.NoDataFound as error:
        raise UnknownCompany(company) from error


@cache
def _settle_statement(schema: str) -> bytes:
    """Calls settle.sql. Nearly always all reports count, and then nothing is said of each."""
    return (
        sql.SQL(
            "select case when count(*) < %s then coalesce(array_agg(task_id), '{{}}') end"
            " from {}(%s, %s, %s, %s, %s, %s, %s, %s) as settled(task_id)"
        )
        .format(sql.Identifier(schema, "settle"))
        .as_bytes()
    )


def _order(task: ClaimedTask) -> tuple[int, int]:
    """The order in which moves lock the rows of tasks; that of PostgreSQL for ids."""
    return task.company_id.int, task.task_id.int


def _named(tasks: Sequence[ClaimedTask]) -> tuple[Uuids, Uuids, Uuids]:
    """What names claimed tasks to the verbs that move them."""
    return (
        Uuids([task.company_id for task in tasks]),
        Uuids([task.task_id for task in tasks]),
        Uuids([task.claim_token for task in tasks]),
    )


def _begun(task: NewTask, made: Enqueued, moment: datetime, token: UUID) -> ClaimedTask:
    """A new task as the one attempt at it has it."""
    return ClaimedTask(
        company_id=made.company_id,
        task_id=made.task_id,
        type=task.type,
        queue=task.queue,
        priority=task.priority,
        run_after=moment,
        retry_count=0,
        rescue_count=0,
        event_number=2,
        claimed_at=moment,
        payload=task.payload,
        max_retries=0,
        timeout_seconds=task.timeout_seconds,
        request_id=None,
        created_at=moment,
        traceparent=None,
        claim_token=token,
    )


def enqueue_arguments(
    company: str,
    tasks: Sequence[NewTask],
    *,
    key_lifetime: timedelta,
    request_id: str | Sequence[str | None] | None,
    traceparent: str | Sequence[str | None] | None,
    at: datetime | None,
) -> tuple[Any, ...]:
    """The arguments of enqueue.sql. Ids are made here, before anything is sent. Where the tasks come from is told of
    all of them, or of each."""
    has_keys = any(task.idempotency_key is not None for task in tasks)
    has_tags = any(task.tags for task in tasks)
    uniques = [task.unique for task in tasks] if any(task.unique is not None for task in tasks) else None
    return (
        company,
        Uuids([task.task_id or new_id() for task in tasks]),
        Texts([task.type for task in tasks]),
        Texts([task.payload for task in tasks]),
        Texts([task.queue for task in tasks]),
        [task.priority for task in tasks],
        [task.run_after for task in tasks] if any(task.run_after is not None for task in tasks) else None,
        _seconds(task.delay_seconds for task in tasks),
        [task.max_retries for task in tasks],
        _seconds(task.timeout_seconds for task in tasks),
        [task.idempotency_key for task in tasks] if has_keys else None,
        [task.fingerprint for task in tasks] if has_keys else None,
        key_lifetime,
        _of_each(request_id, len(tasks)),
        at,
        _of_each(traceparent, len(tasks)),
        [f"{{{','.join(map(_quoted, task.tags))}}}" if task.tags else None for task in tasks] if has_tags else None,
        uniques and [unique and unique.key for unique in uniques],
        uniques and [unique and unique.seconds for unique in uniques],
        uniques and [unique and unique.on_conflict.value for unique in uniques],
    )


def _of_each(told: str | Sequence[str | None] | None, count: int) -> Texts | None:
    return texts_or_none([told] * count if told is None or isinstance(told, str) else told)


def _seconds(values: Iterable[float | None]) -> list[float | None] | None:
    """Numbers of seconds as the driver wants them: not some whole and some not, and None where there are none."""
    seconds = [None if value is None else float(value) for value in values]
    return seconds if any(value is not None for value in seconds) else None


def _quoted(tag: str) -> str:
    """An element of an array as PostgreSQL writes it."""
    escaped = tag.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'


def enqueued_tasks(rows: Sequence[Row], *, of: int) -> list[Enqueued]:
    """What the rows of enqueue.sql say of so many tasks.

    Raises IdempotencyConflict, UniqueKeyTaken, QueueFull, QuotaExceeded and QuotaBusy.
    """
    allowances: tuple[Allowance, ...] = ()
    for _, outcome, *_, told in [row for row in rows if row[0] == 0]:
        if outcome == "busy":
            raise QuotaBusy
        if outcome == "full":
            full = json.loads(told)
            raise QueueFull(full["max_queued"], full["wanted"])
        wanted, allowances = quotas.read(told)
        if outcome == "refused":
            raise QuotaExceeded(allowances, wanted)
    conflicts = [number - 1 for number, outcome, *_ in rows if outcome == "conflict"]
    if conflicts:
        raise IdempotencyConflict(conflicts, of=of)
    if holders := {number - 1: task_id for number, outcome, _, task_id, *_ in rows if outcome == "taken"}:
        raise UniqueKeyTaken(holders, of=of)
    return [
        Enqueued(
            position=number - 1,
            replayed=outcome == "replayed",
            company_id=company_id,
            task_id=task_id,
            status=Status(status) if status else None,
            run_after=run_after,
            created_at=created_at,
            allowances=allowances,
            held=outcome == "held",
        )
        for number, outcome, company_id, task_id, status, run_after, created_at, _ in rows
        if number > 0
    ]
