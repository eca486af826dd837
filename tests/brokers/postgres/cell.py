"""A cell in PostgreSQL as tests see it: its broker, and its tables by plain SQL."""

from __future__ import annotations

import uuid
from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import LiteralString, Self
from uuid import UUID

import psycopg

from taketurns.brokers.postgres import PostgresBroker
from taketurns.engine import turns
from taketurns.engine.rate import Bucket, Rate, owed, starts_left
from taketurns.engine.task import ClaimedTask, Status
from taketurns.storage.database import Database, Row, conninfo
from taketurns.storage.ids import new_id
from tests.brokers.cell import Move
from tests.brokers.pausing import Pauses, put_line
from tests.brokers.places import exact

TABLES = (
    "companies, tasks, scheduled_tasks, pending_tasks, processing_tasks, lines, turns, rotations, looks, task_events,"
    " idempotency_keys, watches, workers, budgets, buckets, pauses, heartbeats, quota_usage, quota_changes,"
    " job_reservations, task_tags, unique_keys, operations, operation_tasks, prunings"
)


@dataclass(frozen=True, slots=True)
class Turn:
    """One turn that a claim took, as its row says."""

    company: str
    task_id: UUID
    company_id: UUID
    queue: str
    token: UUID


def connect(url: str) -> psycopg.Connection[Row]:
    """A connection whose names are the cell's."""
    connection = psycopg.connect(conninfo(url), autocommit=True)
    connection.execute("set search_path to taketurns")
    connection.execute("set statement_timeout to '20s'")
    return connection


class PostgresCell:
    """See tests.brokers.cell.Cell; `take` and `settle` are the verbs by bare SQL, for rules that need no broker."""

    broker: PostgresBroker

    def __init__(self, url: str) -> None:
        self.url = url
        self.connection = connect(url)
        self.pauses = Pauses()
        self._slugs: dict[UUID, str] = {}
        self._now: datetime | None = None

    @classmethod
    async def open(cls, url: str, *, pool_size: int = 16) -> Self:
        cell = cls(url)
        database = Database(url, pool_size=pool_size)
        await database.open()
        cell.broker = PostgresBroker(database)
        return cell

    async def close(self) -> None:
        await self.broker.notifier.flush()
        await self.broker.database.close()
        self.connection.close()

    def add_company(
        self, slug: str, *, weight: int = 1, max_in_flight: int | None = None, paused: bool = False
    ) -> UUID:
        company_id = new_id()
        self.connection.execute(
            "insert into companies (id, slug, name, weight, max_in_flight, paused) values (%s, %s, %s, %s, %s, %s)",
            (company_id, slug, slug, weight, max_in_flight, paused),
        )
        self._slugs[company_id] = slug
        return company_id

    def add_companies(self, count: int, *, tasks: int = 1, name: str = "company") -> None:
        """Companies with a task or a few each, as many enqueues would leave them."""
        self.connection.execute(
            """
            with company as (
                insert into companies (id, slug, name)
                select gen_random_uuid(), %s::text || '-' || n, '' from generate_series(1, %s) n returning id
            ), line as (
                insert into lines (company_id, queue) select id, 'default' from company
            )
            insert into turns (queue, place, company_id) select 'default', place_reached('default'), id from company
            """,
            (name, count),
        )
        self._add_tasks(f"(select id from companies where slug like '{name}-%%') c, generate_series(1, %s)", tasks)
        self._put_into("pending_tasks")
        self.name_companies()

    def add_flood(self, count: int) -> None:
        """Many tasks of one company."""
        self._add_tasks("(select id from companies order by id limit 1) c, generate_series(1, %s)", count)
        self._put_into("pending_tasks")

    def add_scheduled(self, count: int) -> None:
        """Many tasks of one company that are not due."""
        self._add_tasks("(select id from companies order by id limit 1) c, generate_series(1, %s)", count)
        self._put_into("scheduled_tasks")

    def add_finished(self, count: int) -> None:
        """Many tasks of one company that have ended, with an event each."""
        self._add_tasks("(select id from companies order by id limit 1) c, generate_series(1, %s)", count)
        self.connection.execute(
            """
            with finished as (
                update tasks set finished_at = clock_timestamp(), event_number = 3
                where (company_id, id) in (select company_id, id from added) returning company_id, id
            )
            insert into task_events (company_id, task_id, number, kind, at)
            select company_id, id, 2, 'released', clock_timestamp() from finished
            """
        )

    def _add_tasks(self, source: str, count: int) -> None:
        """Records for companies by their id, remembered in the temporary table `added`."""
        self.connection.execute("drop table if exists added")
        self.connection.execute("create temporary table added (like tasks)")
        statement = f"""
            with task as (
                insert into tasks (company_id, id, type, queue, priority, run_after, max_retries, payload, created_at)
                select id, gen_random_uuid(), 'work', 'default', 5, clock_timestamp(), 0, '{{}}', clock_timestamp()
                from {source} returning *
            )
            insert into added select * from task
            """
        self.connection.execute(statement.encode(), (count,))

    def _put_into(self, place: str) -> None:
        statement = f"""
            insert into {place} (queue, company_id, priority, run_after, task_id, type)
            select queue, company_id, priority, run_after, id, type from added
            """
        self.connection.execute(statement.encode())

    def finish_all(self, *, but_of: str = "nobody") -> None:
        """Settle whatever is held, but by companies of this name."""
        self.connection.execute(
            """
            select settle(array_agg(p.company_id), array_agg(p.task_id), array_agg(p.claim_token),
                array_agg('completed'::text), array_agg(null::text), array_agg(null::text), array_agg(0.0::float8))
            from (
                select * from processing_tasks
                where company_id not in (select id from companies where slug like %s || '-%%')
                order by company_id, task_id
            ) p having count(*) > 0
            """,
            (but_of,),
        )

    def finish_all_as(self, outcome: str, held: Sequence[ClaimedTask]) -> None:
        """Settle these in one statement on the cell's own connection."""
        ordered = sorted(held, key=lambda task: (task.company_id, task.task_id))
        count = len(ordered)
        self.connection.execute(
            "select settle(%s, %s, %s, %s, %s, %s, %s)",
            (
                [task.company_id for task in ordered],
                [task.task_id for task in ordered],
                [task.claim_token for task in ordered],
                [outcome] * count,
                [None] * count,
                [None] * count,
                [0.0] * count,
            ),
        )

    def add_hoarder(self, hands: int) -> None:
        """A company that waits while it has so many hands: nobody else comes near its share."""
        self.add_company("hoarder")
        self.submit("hoarder", hands + 1)
        assert len(self.take(hands)) == hands

    def name_companies(self) -> None:
        """Learn the slugs of companies that were made by other statements."""
        self._slugs = dict(self.rows("select id, slug from companies"))

    def set_weight(self, slug: str, weight: int) -> None:
        self.connection.execute("update companies set weight = %s where slug = %s", (weight, slug))

    def set_max_in_flight(self, slug: str, most: int | None) -> None:
        self.connection.execute("update companies set max_in_flight = %s where slug = %s", (most, slug))
        self.connection.execute("select wake(company_id(%s))", (slug,))

    def set_rate(self, slug: str, rate: Rate | None) -> None:
        self.connection.execute(
            "update companies set rate_tasks = %s, rate_seconds = %s, rate_burst = %s where slug = %s",
            (*((None,) * 3 if rate is None else (rate.tasks, rate.seconds, rate.burst)), slug),
        )
        self.connection.execute("select wake(company_id(%s))", (slug,))

    def set_quotas(
        self, slug: str, *, hour: int | None = None, day: int | None = None, month: int | None = None
    ) -> None:
        self.connection.execute(
            "update companies set hourly_quota = %s, daily_quota = %s, monthly_quota = %s where slug = %s",
            (hour, day, month, slug),
        )

    def pause(self, company: str | None, *, queue: str = "", type: str = "", until: datetime | None = None) -> None:
        ((owner,),) = self.rows("select owner from pause(%s, %s, %s, %s)", company, queue, type, until)
        self.pauses.put((self._owner(company), queue, type), until)
        self.connection.execute("select let_lines_return(%s, %s)", (owner, queue))

    def resume(self, company: str | None, *, queue: str = "", type: str = "") -> None:
        ((owner,),) = self.rows("select resume(%s, %s, %s)", company, queue, type)
        self.pauses.lift((self._owner(company), queue, type))
        self.connection.execute("select let_lines_return(%s, %s)", (owner, queue))

    def _owner(self, slug: str | None) -> UUID | None:
        return None if slug is None else next(company for company, name in self._slugs.items() if name == slug)

    def set_max_queued(self, slug: str, most: int | None) -> None:
        self.connection.execute("update companies set max_queued = %s where slug = %s", (most, slug))

    def set_paused(self, slug: str, paused: bool) -> None:
        with self.connection.transaction():
            self.connection.execute("select pg_advisory_xact_lock_shared(company_lock(company_id(%s)))", (slug,))
            self.connection.execute("update companies set paused = %s where slug = %s", (paused, slug))
            if not paused:
                self.connection.execute("select heal_rotation(company_id(%s))", (slug,))

    def delete_company(self, slug: str) -> None:
        self.connection.execute("delete from companies where slug = %s", (slug,))

    def add_lease(self, worker_id: UUID, *, beat: int = 0, types: Sequence[str] = ("work",)) -> None:
        self.connection.execute(
            "insert into workers (id, name, host, version, queues, types, concurrency, beat, started_at, beat_at)"
            " values (%s, 'worker', 'host', '0', '{default}', %s, 1, %s, clock_timestamp(), clock_timestamp())",
            (worker_id, list(types), beat),
        )

    def beat(self, worker_id: UUID) -> int:
        ((beat,),) = self.rows(
            "update workers set beat = beat + 1, beat_at = clock_timestamp() where id = %s returning beat", worker_id
        )
        return int(beat)

    def remove_lease(self, worker_id: UUID) -> None:
        self.connection.execute("delete from workers where id = %s", (worker_id,))

    def slug_of(self, company_id: UUID) -> str:
        return self._slugs[company_id]

    def company_of(self, task_id: UUID) -> UUID:
        ((company_id,),) = self.rows("select company_id from tasks where id = %s", task_id)
        assert isinstance(company_id, UUID)
        return company_id

    def status(self, task_id: UUID) -> Status | None:
        found = self.rows(f"select status from ({_STATUSES}) s where task_id = %s", task_id)
        return Status(found[0][0]) if found else None

    def result(self, task_id: UUID) -> object:
        return self.rows("select result from tasks where id = %s", task_id)[0][0]

    def error(self, task_id: UUID) -> str | None:
        error: str | None = self.rows("select error from tasks where id = %s", task_id)[0][0]
        return error

    def retries(self, task_id: UUID) -> int:
        ((count,),) = self.rows(
            "select coalesce(s.retry_count, p.retry_count, r.retry_count, t.retry_count) from tasks t"
            " left join scheduled_tasks s on s.task_id = t.id left join pending_tasks p on p.task_id = t.id"
            " left join processing_tasks r on r.task_id = t.id where t.id = %s",
            task_id,
        )
        return int(count)

    def history(self, task_id: UUID) -> list[Move]:
        rows = self.rows(f"select number, kind from ({_MOVES}) m where task_id = %s order by number, kind", task_id)
        return [Move(*row) for row in rows]

    def standing(self) -> Counter[Status]:
        rows = self.rows(f"select status, count(*) from ({_STATUSES}) s group by status")
        return Counter({Status(status): count for status, count in rows})

    def keeps_somebody_waiting(self) -> bool:
        """Whether somebody waits for an advisory lock here; other databases of the server are those of other tests."""
        return bool(
            self.rows(
                "select from pg_locks l join pg_database d on d.oid = l.database"
                " where d.datname = current_database() and l.locktype = 'advisory' and not l.granted"
            )
        )

    def contradictions(self) -> list[str]:
        return [
            f"{what}: {row}"
            for what, statement in _CONTRADICTIONS.items()
            for row in self.connection.execute(statement.encode()).fetchall()
        ]

    def clear(self) -> None:
        self.connection.execute(f"truncate {TABLES}")
        self.pauses = Pauses()
        self._slugs.clear()
        self._now = None

    def lines(self) -> dict[tuple[str, UUID], dict[UUID, str]]:
        lines = defaultdict[tuple[str, UUID], dict[UUID, str]](dict)
        for queue, company, task, type in self.rows("select queue, company_id, task_id, type from pending_tasks"):
            lines[queue, company][task] = type
        return lines

    def noted_lines(self, queues: Sequence[str]) -> set[tuple[str, UUID]]:
        rows = self.rows("select queue, company_id from lines where queue = any (%s)", list(queues))
        return {(queue, company) for queue, company in rows}

    def pass_time(self, microseconds: int) -> datetime:
        """From a minute ahead of the clock on, so that what was submitted is due."""
        begun = self._now or datetime.now(UTC) + timedelta(minutes=1)
        self._now = begun + timedelta(microseconds=microseconds)
        return self._now

    def rows(self, statement: str, *arguments: object) -> list[Row]:
        return self.connection.execute(statement.encode(), arguments).fetchall()

    # The verbs by bare SQL.

    def submit(
        self,
        company: str,
        count: int = 1,
        *,
        queue: str = "default",
        type: str = "work",
        priority: int = 5,
        delay_seconds: float | None = None,
        on: psycopg.Connection[Row] | None = None,
    ) -> list[UUID]:
        task_ids = [new_id() for _ in range(count)]
        (on or self.connection).execute(
            "select * from enqueue(%s, %s, %s, %s, %s, %s, %s, %s, %s, %s)",
            (
                company,
                task_ids,
                [type] * count,
                ["{}"] * count,
                [queue] * count,
                [priority] * count,
                [None] * count,
                [delay_seconds] * count,
                [0] * count,
                [None] * count,
            ),
        )
        return task_ids

    def take(
        self,
        batch: int,
        *,
        queues: Sequence[str] = ("default",),
        skipped_types: Sequence[str] = (),
        worker: UUID | None = None,
        at: datetime | None = None,
        on: psycopg.Connection[Row] | None = None,
        function: LiteralString = "claim",
    ) -> list[Turn]:
        token = uuid.uuid4()
        rows = (on or self.connection).execute(
            f"select company_id, task_id, queue from {function}(%s, %s, %s, %s, %s{', %s' if at else ''})"
            " where task_id is not null",
            (worker or WORKER, list(queues), batch, token, list(skipped_types), *([at] if at else [])),
        )
        return [Turn(self._slugs[company], task, company, queue, token) for company, task, queue in rows]

    def finish(
        self,
        taken: Sequence[Turn],
        outcome: str = "completed",
        *,
        on: psycopg.Connection[Row] | None = None,
        function: LiteralString = "settle",
    ) -> int:
        """Settle turns; answers how many stood."""
        companies, task_ids, tokens = _columns(taken)
        count = len(taken)
        return (
            (on or self.connection)
            .execute(
                f"select * from {function}(%s, %s, %s, %s, %s, %s, %s)",
                (companies, task_ids, tokens, [outcome] * count, [None] * count, [None] * count, [0.0] * count),
            )
            .rowcount
        )

    def give_back(self, taken: Sequence[Turn], *, on: psycopg.Connection[Row] | None = None) -> int:
        """Release turns; answers how many stood."""
        return (on or self.connection).execute("select * from release(%s, %s, %s)", _columns(taken)).rowcount

    def heal(self) -> int:
        ((healed,),) = self.rows("select heal_rotation() + heal_turns()")
        return int(healed)

    def seen_by_the_rule(
        self, queues: Sequence[str], at: datetime | None = None
    ) -> tuple[dict[str, turns.Company], dict[str, turns.Rotation]]:
        """What the model in taketurns.engine.turns needs to tell the next claim; companies go by their id.

        Rates need the moment of the claim.
        """
        now = 0 if at is None else round(at.timestamp() * 1_000_000)
        companies = {
            str(company): turns.Company(weight, held, most, paused, _starts_left(rate, bucket, now))
            for company, weight, held, most, paused, rate, bucket in self.rows(
                "select c.id, c.weight, (select count(*) from processing_tasks p where p.company_id = c.id),"
                " c.max_in_flight, c.paused, array[rate_tasks, rate_seconds, rate_burst],"
                " (select array[b.owed, b.seconds, extract(epoch from b.at) * 1000000]::bigint[]"
                " from buckets b where b.company_id = c.id) from companies c"
            )
        }
        named = {
            queue
            for (queue,) in self.rows(
                "select ltrim(queue, '!') from turns union select queue from rotations"
                " union select queue from pending_tasks where not starts_with(queue, '!')"
            )
        }
        rotations = {queue: turns.Rotation() for queue in {*named, *queues}}
        for queue, place in self.rows("select queue, max(place) from rotations group by queue"):
            rotations[queue].place = exact(place)
        for queue, company, place in self.rows("select queue, company_id, place from turns"):
            rotations[queue.removeprefix("!")].places[str(company)] = exact(place)
        for queue, company, types in self.rows(
            "select queue, company_id, json_object_agg(type, count) from ("
            " select queue, company_id, type, count(*) from pending_tasks where not starts_with(queue, '!')"
            " group by queue, company_id, type) t group by queue, company_id"
        ):
            put_line(rotations[queue], str(company), queue, types, self.pauses, at)
        for queue, rotation in rotations.items():
            is_closed = self.pauses.have_queue(None, queue, at)
            rotation.paused = frozenset(
                company for company in companies if is_closed or self.pauses.have_queue(UUID(company), queue, at)
            )
        return companies, rotations


def _starts_left(rate: list[int | None], bucket: list[int] | None, at: int) -> int | None:
    if None in rate:
        return None
    known = Rate(*(number or 0 for number in rate))
    return starts_left(known, owed(known, Bucket(*bucket) if bucket else None, at))


def _columns(taken: Sequence[Turn]) -> tuple[list[UUID], list[UUID], list[UUID]]:
    """Companies, tasks and tokens in the order in which brokers name them."""
    ordered = sorted(taken, key=lambda turn: (turn.company_id, turn.task_id))
    return (
        [turn.company_id for turn in ordered],
        [turn.task_id for turn in ordered],
        [turn.token for turn in ordered],
    )


WORKER = uuid.UUID(int=1)

_STATUSES = """
    select task_id, 'scheduled' as status from scheduled_tasks
    union all select task_id, 'pending' from pending_tasks
    union all select task_id, 'processing' from processing_tasks
    union all select id, coalesce(stopped_as, 'completed') from tasks where finished_at is not null
"""

# The claim that began an attempt is told by the move that ended it, or by the row of an attempt that is running.
_MOVES = """
    select id as task_id, 1 as number, 'created' as kind from tasks
    union all select task_id, number, kind from task_events
    union all select task_id, number - 1, 'claimed' from task_events where started_at is not null
    union all select id, event_number, coalesce(stopped_as, 'completed') from tasks where finished_at is not null
    union all select id, event_number - 1, 'claimed' from tasks where finished_at is not null and started_at is not null
    union all select task_id, event_number, 'claimed' from processing_tasks
"""

_CONTRADICTIONS = {
    "a task does not stand in exactly one place": f"""
        select t.id, array_agg(s.status) from tasks t left join ({_STATUSES}) s on s.task_id = t.id
        group by t.id having count(s.status) <> 1""",
    "something stands there that is no task": f"""
        select s.* from ({_STATUSES}) s where not exists (select from tasks t where t.id = s.task_id)""",
    "an event is no task's": """
        select e.* from task_events e where not exists (select from tasks t where t.id = e.task_id)""",
    "a place and its record differ": """
        select t.id from tasks t
        join (select task_id, queue, priority, type, company_id from scheduled_tasks
              union all select task_id, queue, priority, type, company_id from pending_tasks
              union all select task_id, queue, priority, type, company_id from processing_tasks) p on p.task_id = t.id
        where (p.priority, p.type, p.company_id) <> (t.priority, t.type, t.company_id)
            or p.queue not in (t.queue, format('!%s!%s', t.type, t.queue))""",
    "a company has work but no turn": """
        select distinct c.slug, p.queue from pending_tasks p join companies c on c.id = p.company_id
        where not c.paused and not starts_with(p.queue, '!')
            and not exists (
                select from turns t join lines l on l.company_id = t.company_id and l.queue = ltrim(t.queue, '!')
                where t.company_id = p.company_id and l.queue = p.queue)""",
    "a line has not exactly one turn": """
        select l.company_id, l.queue, t.company_id, t.queue, count(t.queue)
        from lines l full join turns t on t.company_id = l.company_id
            and t.queue = case when l.rests_place is null then l.queue else '!' || l.queue end
        group by 1, 2, 3, 4 having l.queue is null or count(t.queue) <> 1""",
    "a line has not one turn": """
        select l.company_id, l.queue, count(t.place) from lines l
        full join turns t on t.company_id = l.company_id and ltrim(t.queue, '!') = l.queue
        group by l.company_id, l.queue having count(t.place) <> 1 or l.queue is null""",
    "a line rests elsewhere than its turn": """
        select l.* from lines l where l.rests_place is not null and not exists (
            select from turns t
            where t.queue = '!' || l.queue and t.place = l.rests_place and t.company_id = l.company_id)""",
    "a company has more than one bucket": """
        select b.company_id from buckets b group by b.company_id having count(*) > 1""",
    "what is used of a quota is not what the rows are charged": """
        select u.company_id, u.period, u.starts_at, u.reserved, u.refunded, x.refunded, u.kept, x.kept, r.charged
        from (select u.*, date_add(u.starts_at, ('1 ' || u.period)::interval, 'UTC') as ends_at from quota_usage u) u
        cross join lateral (
            select coalesce(sum(c.refunded), 0) as refunded, coalesce(sum(c.kept), 0) as kept from quota_changes c
            where c.company_id = u.company_id and c.hour_starts_at >= u.starts_at and c.hour_starts_at < u.ends_at) x
        cross join lateral (
            select count(*) as charged from (
                select company_id, reserved_at from tasks
                union all select company_id, reserved_at from job_reservations) t
            where t.company_id = u.company_id and t.reserved_at >= u.starts_at and t.reserved_at < u.ends_at) r
        where u.reserved - u.refunded - x.refunded <> u.kept + x.kept + r.charged
            or u.refunded + x.refunded > u.reserved""",
    "a task is charged to a period that is not counted": """
        select t.id from tasks t where t.reserved_at is not null and 3 <> (
            select count(*) from quota_usage u
            where u.company_id = t.company_id and u.starts_at = date_trunc(u.period, t.reserved_at, 'UTC'))""",
    "a history has gaps, or a number twice": f"""
        select m.task_id, array_agg(m.number order by m.number) from ({_MOVES}) m group by m.task_id
        having array_agg(m.number order by m.number)
            <> (select array_agg(n) from generate_series(1, count(m.number)::integer) n)""",
    "a place does not stand at the last number of its history": f"""
        select p.task_id from (
            select task_id, event_number from scheduled_tasks
            union all select task_id, event_number from pending_tasks
            union all select task_id, event_number from processing_tasks) p
        join (select m.task_id, max(m.number) as number from ({_MOVES}) m group by m.task_id) m on m.task_id = p.task_id
        where p.event_number <> m.number""",
}
