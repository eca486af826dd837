"""The Redis broker: each verb is one run of the script in the `.lua` file of its name."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Callable, Collection, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from datetime import datetime, timedelta
from typing import Any
from uuid import UUID, uuid4

import orjson

from taketurns import telemetry
from taketurns.brokers.redis import checks, leases, replies, scripts, wakeups
from taketurns.brokers.redis.replies import microseconds, milliseconds, moment, optional
from taketurns.brokers.redis.server import Server
from taketurns.engine.errors import BeingDeleted, IdempotencyConflict, QueueFull, Unconfirmed, UnknownCompany
from taketurns.engine.job import (
    Charge,
    Job,
    JobCompany,
    JobEvent,
    JobName,
    JobPause,
    JobPauses,
    KnownKey,
)
from taketurns.engine.orders import WAKE, Asked, Wanted
from taketurns.engine.retention import Retention
from taketurns.engine.task import Claimed, ClaimedTask, Enqueued, NewTask, Promoted, Pruned, Report, Rescued, Status
from taketurns.storage.ids import new_id
from taketurns.telemetry import Event

COMPANIES_AT_A_TIME = 200
JOBS_AT_A_TIME = 1_000
CLOSED_MILLISECONDS = 30_000  # more than the transaction of a deletion may take


class RedisBroker:
    """Where jobs wait that somebody watches. Ended ones are forgotten after their lifetime.

    With `wait_aof_seconds` what clients ask for counts as done only when the server's append-only file has it on the
    disk; when that does not come in time, Unconfirmed is raised.
    """

    def __init__(
        self,
        server: Server,
        *,
        completed_lifetime: timedelta = timedelta(hours=24),
        stopped_lifetime: timedelta = timedelta(days=7),
        key_lifetime: timedelta = timedelta(hours=24),
        wait_aof_seconds: float | None = None,
        make_token: Callable[[], UUID] = uuid4,
    ) -> None:
        self.server = server
        self.key_lifetime = key_lifetime
        self._completed_lifetime = milliseconds(completed_lifetime)
        self._stopped_lifetime = milliseconds(stopped_lifetime)
        self._wait_aof_seconds = wait_aof_seconds
        self._make_token = make_token
        self._log = telemetry.logger("jobs").bind()

    async def enqueue(
        self,
        company: str,
        tasks: Sequence[NewTask],
        *,
        request_id: str | None = None,
        traceparent: str | None = None,
        at: datetime | None = None,
    ) -> list[Enqueued]:
        ids = [task.task_id or new_id() for task in tasks]
        rows = [replies.new_job(task, job_id) for task, job_id in zip(tasks, ids, strict=True)]
        rest = [replies.rest_of_job(task, request_id=request_id, traceparent=traceparent) for task in tasks]
        arguments = (
            microseconds(at),
            replies.company(company),
            milliseconds(self.key_lifetime),
            orjson.dumps(rows),
            *rest,
        )
        (outcome, *told), doubt = await self._ask("enqueue", *arguments)
        if outcome == b"unknown":
            raise UnknownCompany(company)
        if outcome == b"closed":
            raise BeingDeleted(company)
        if outcome == b"conflict":
            raise IdempotencyConflict(told[0], of=len(tasks))
        if outcome == b"full":
            raise QueueFull(*told)
        made = replies.enqueued(ids, *told)
        if doubt:
            raise Unconfirmed(doubt, [task.task_id for task in made])
        return made

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
        arguments = claim_arguments(
            worker_id,
            token,
            queues=queues,
            batch=batch,
            skipped_types=skipped_types,
            lost_lifetime=self._stopped_lifetime,
            at=at,
        )
        taken, lost, again_at, claimed_at = await self.server.call("claim", *arguments)
        self._tell(lost)
        return Claimed(replies.claimed(taken, token, claimed_at), again_at=moment(again_at))

    async def settle(self, reports: Sequence[Report], *, at: datetime | None = None) -> set[UUID]:
        completed, others, in_order = replies.reported(reports)
        ignored = await self.server.call(
            "settle",
            microseconds(at),
            self._completed_lifetime,
            self._stopped_lifetime,
            orjson.dumps(completed),
            orjson.dumps(others),
        )
        if not ignored:
            return set(in_order)
        return {task_id for number, task_id in enumerate(in_order, 1) if number not in ignored}

    async def release(self, tasks: Sequence[ClaimedTask], *, at: datetime | None = None) -> set[UUID]:
        arguments = [microseconds(at)]
        for task in tasks:
            arguments += [replies.name(task.company_id, task.task_id), str(task.claim_token)]
        return replies.ids(await self.server.call("release", *arguments))

    async def rescue(
        self, worker_id: UUID, *, watched_beat: int | None, max_rescues: int, at: datetime | None = None
    ) -> list[Rescued]:
        rows, lost = await self.server.call(
            "rescue",
            microseconds(at),
            str(worker_id),
            optional(watched_beat),
            max_rescues,
            self._stopped_lifetime,
        )
        self._tell(lost)
        return [replies.rescued(row) for row in rows]

    def lease_line(self, *, patience_seconds: float) -> leases.RedisLease:
        return leases.RedisLease(self.server.nodes, cell=self.server.cell, patience_seconds=patience_seconds)

    async def order(self, worker: UUID | str, wanted: Wanted) -> Asked:
        return Asked(*await self.server.call("order", str(worker), wanted.value, WAKE))

    async def beats(self) -> dict[UUID, int | None]:
        rows = await self.server.call("beats")
        return {UUID(worker.decode()): None if beat is None else int(beat) for worker, beat in rows}

    async def overdue(self, *, seconds: float, at: datetime | None = None) -> set[UUID]:
        return replies.ids(await self.server.call("overdue", microseconds(at), round(seconds * 1_000_000)))

    async def held(self, worker_id: UUID) -> list[ClaimedTask]:
        return [replies.held(*row) for row in await self.server.call("held", str(worker_id))]

    async def promote(self, *, most: int = 1_000, at: datetime | None = None) -> Promoted:
        count, queues, next_due, lost = await self.server.call(
            "promote", microseconds(at), most, self._stopped_lifetime
        )
        self._tell(lost)
        return Promoted(count, tuple(sorted(queue.decode() for queue in queues)), moment(next_due))

    async def cancel(self, company: str, task_id: UUID, *, at: datetime | None = None) -> Status | None:
        told, doubt = await self._ask(
            "cancel", microseconds(at), replies.company(company), str(task_id), self._stopped_lifetime
        )
        status = Status(told.decode()) if told else None
        if doubt and status is Status.CANCELLED:
            raise Unconfirmed(doubt, [task_id])
        return status

    async def retry(
        self,
        company: str,
        task_id: UUID,
        *,
        seen: int | None = None,
        reserved_at: datetime | None = None,
        at: datetime | None = None,
    ) -> Status | None:
        told, doubt = await self._ask(
            "retry",
            microseconds(at),
            replies.company(company),
            str(task_id),
            microseconds(reserved_at),
            optional(seen),
        )
        if told == b"closed":
            raise BeingDeleted(company)
        status = Status(told.decode()) if told else None
        if doubt and status not in {None, Status.PROCESSING}:
            raise Unconfirmed(doubt, [task_id])
        return status

    async def prune(self, keep: Retention, *, most: int = 1_000, at: datetime | None = None) -> Pruned:
        tasks, keys = await self.server.call(
            "prune",
            microseconds(at),
            most,
            milliseconds(keep.completed),
            milliseconds(keep.failed),
            milliseconds(keep.cancelled),
            self._completed_lifetime,
            self._stopped_lifetime,
        )
        return Pruned(tasks, keys, has_more=max(tasks, keys) >= most)

    async def heal(self) -> int:
        healed = 0
        async for companies in self._members(self.server.key("companies"), at_a_time=COMPANIES_AT_A_TIME):
            healed += await self.server.call("heal", *companies)
        await self.server.call("heal")
        return healed

    async def park(
        self, types: Sequence[str], *, queues: Sequence[str], most: int = 1_000, at: datetime | None = None
    ) -> dict[str, int]:
        rows = await self.server.call("park", json.dumps(list(types)), json.dumps(list(queues)), most, microseconds(at))
        return {type.decode(): count for type, count in rows}

    async def unpark(self, *, most: int = 1_000, at: datetime | None = None) -> int:
        count, lost = await self.server.call("unpark", most, self._stopped_lifetime, microseconds(at))
        self._tell(lost)
        return int(count)

    def wakeups(self) -> AbstractAsyncContextManager[AsyncIterator[frozenset[str]]]:
        return wakeups.listen(self.server, "work")

    async def watch(self, company_id: UUID, task_id: UUID, *, seconds: float) -> None:
        await self.server.call("watch", replies.name(company_id, task_id), round(seconds * 1_000))

    @asynccontextmanager
    async def changes(self) -> AsyncIterator[AsyncIterator[frozenset[UUID]]]:
        async with wakeups.listen(self.server, "changes") as messages:
            yield (frozenset(map(UUID, told)) async for told in messages)

    async def job(self, company_id: UUID, job_id: UUID, *, confirmed: bool = False) -> Job | None:
        name, doubt = replies.name(company_id, job_id), None
        if confirmed:
            told, doubt = await self._ask("job", name, "vouch")
        else:
            told = await self.server.call("job", name, "")
        job = None if told is None else replies.job(company_id, job_id, *told)
        if doubt and job is not None:
            raise Unconfirmed(doubt, [job_id])
        return job

    async def job_events(self, company_id: UUID, job_id: UUID, *, after: int = 0) -> list[JobEvent] | None:
        rows = await self.server.call("job_events", replies.name(company_id, job_id))
        return None if rows is None else [replies.event(row) for row in rows[after:]]

    async def job_ids(self, company_id: UUID) -> AsyncIterator[list[UUID]]:
        cursor = "0"
        while True:
            cursor, names = await self.server.call("job_ids", str(company_id), cursor, JOBS_AT_A_TIME)
            if names:
                yield [UUID(name.decode()) for name in names]
            if int(cursor) == 0:
                return

    async def known_key(self, company_id: UUID, key: str) -> KnownKey | None:
        name = self.server.key("key", company_id, key)
        job_id, fingerprint = await self.server.command("HMGET", name, "id", "fingerprint")
        return KnownKey(UUID(job_id.decode()), bytes.fromhex(fingerprint.decode())) if job_id else None

    async def put_company(self, company: JobCompany, *, instead_of: datetime | None = None) -> None:
        rate = company.rate
        await self.server.call(
            "put_company",
            optional(microseconds(instead_of) or None),
            str(company.id),
            company.slug,
            company.weight,
            "" if company.max_in_flight is None else company.max_in_flight,
            int(company.paused),
            microseconds(company.updated_at),
            *(("", "", "") if rate is None else (rate.tasks, rate.seconds, rate.burst)),
            "" if company.max_queued is None else company.max_queued,
        )

    async def companies(self) -> AsyncIterator[list[JobCompany]]:
        async for names in self._members(self.server.key("companies"), at_a_time=COMPANIES_AT_A_TIME):
            rows = await self.server.call("companies", *names)
            yield [replies.company_told(*row) for row in zip(names, rows, strict=True)]

    async def _members(self, key: str, *, at_a_time: int) -> AsyncIterator[list[bytes]]:
        cursor = 0
        while True:
            cursor, names = await self.server.command("SSCAN", key, cursor, "COUNT", at_a_time)
            if names:
                yield names
            if int(cursor) == 0:
                return

    async def close_company(self, company_id: UUID, *, is_forced: bool) -> bool:
        closed = await self.server.call("close_company", str(company_id), int(is_forced), CLOSED_MILLISECONDS)
        return bool(closed)

    async def reopen_company(self, company_id: UUID) -> None:
        await self.server.command("DEL", self.server.key("closed", company_id))

    async def forget_company(self, company_id: UUID) -> None:
        while await self.server.call("forget_company", str(company_id), JOBS_AT_A_TIME):
            pass

    async def pauses(self) -> JobPauses:
        revision, rows = await self.server.call("pauses")
        return JobPauses(int(revision), dict(replies.pauses(*row) for row in rows))

    async def put_pauses(self, company_id: UUID | None, pauses: Collection[JobPause], *, revision: int) -> int | None:
        told = [
            argument
            for pause in pauses
            for argument in (f"{pause.queue or ''}!{pause.type or ''}", microseconds(pause.until))
        ]
        owner = replies.EVERYBODY if company_id is None else str(company_id)
        put: int | None = await self.server.call("put_pauses", owner, revision, *told)
        return put

    async def due_refunds(self, *, most: int = 1_000) -> list[Charge]:
        rows = await self.server.command("ZRANGE", self.server.key("refunds"), 0, most - 1)
        return [replies.charge(row) for row in rows]

    async def drop_refunds(self, charges: Sequence[Charge]) -> None:
        if charges:
            names = [replies.charge_name(charge) for charge in charges]
            await self.server.command("ZREM", self.server.key("refunds"), *names)

    async def dead_letters(self, *, most: int = 100) -> list[JobName]:
        """The jobs of the cell that failed and are still kept, the latest first."""
        rows = await self.server.command("ZREVRANGE", self.server.key("ended", Status.FAILED.value), 0, most - 1)
        return [JobName(*replies.parts(row)) for row in rows]

    async def check(self) -> list[str]:
        return await checks.complaints(self.server, needs_aof=self._wait_aof_seconds is not None)

    async def _ask(self, verb: str, *arguments: object) -> tuple[Any, str | None]:
        """What a verb that a client asked for answers, and why a crash may undo what it tells, or None."""
        if self._wait_aof_seconds is None:
            return await self.server.call(verb, *arguments), None
        return await self.server.run_durably(scripts.load(verb), *arguments, patience_seconds=self._wait_aof_seconds)

    def _tell(self, lost: Sequence[Sequence[bytes]]) -> None:
        telemetry.JOBS_LOST.inc(len(lost))
        for row in lost:
            company_id, job_id, type, queue, why = (field.decode() for field in row)
            self._log.error(Event.JOB_LOST, company_id=company_id, task_id=job_id, type=type, queue=queue, why=why)


def claim_arguments(
    worker_id: UUID,
    token: UUID,
    *,
    queues: Sequence[str],
    batch: int,
    skipped_types: Sequence[str] = (),
    lost_lifetime: int,
    at: datetime | None = None,
) -> tuple[object, ...]:
    """The arguments of claim.lua."""
    return (
        microseconds(at),
        str(worker_id),
        str(token),
        batch,
        json.dumps(list(queues)),
        json.dumps(list(skipped_types)),
        lost_lifetime,
    )
