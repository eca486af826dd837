"""A company's figures are those of its rows now and of its attempts lately, over restarts and at a bounded cost."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from uuid import UUID, uuid4

import pytest
from sqlalchemy import select

from taketurns import telemetry
from taketurns.companies import directory
from taketurns.engine.task import ClaimedTask, Outcome, Report
from taketurns.history import board, rollups, stats
from taketurns.history.rollups import Attempts, RollUp
from taketurns.history.stats import Stats
from taketurns.storage.database import Database
from taketurns.storage.models import Rollup
from tests.history.conftest import Life

NOON = datetime(2030, 1, 31, 12, tzinfo=UTC)


async def tell(life: Life, *, at: datetime, completed: int = 0, failed: int = 0, waits: str = "{}") -> None:
    """What a worker would tell."""
    arguments = ("tasks", [life.company_id], [completed], [0], [failed], [waits], 100, at)
    await life.database.call("tell_attempts", *arguments)


async def roll_up(database: Database, *, at: datetime) -> None:
    while (await database.call("roll_up", rollups.KEEP_TENS, rollups.KEEP_MINUTES, 1_000, at))[0][0]:
        pass


async def read(life: Life, *, window_seconds: float = 600.0, at: datetime | None = None) -> Stats:
    told = await stats.read(life.database, life.company_id, window_seconds=window_seconds, at=at)
    assert told is not None
    return told


async def periods(life: Life) -> list[tuple[int, datetime]]:
    async with life.database.connection() as connection:
        cursor = await connection.execute(
            "select seconds, starts_at from taketurns.rollups where company_id = %s order by seconds, starts_at",
            (life.company_id,),
        )
        return [(seconds, starts_at) for seconds, starts_at in await cursor.fetchall()]


def ended(life: Life, outcome: Outcome, *, waited: float, rescues: int = 0, company: UUID | None = None) -> Report:
    task = ClaimedTask(
        company_id=company or life.company_id,
        task_id=uuid4(),
        type="work",
        queue="default",
        priority=5,
        run_after=NOON - timedelta(seconds=waited),
        retry_count=0,
        rescue_count=rescues,
        event_number=1,
        claimed_at=NOON,
        payload="{}",
        max_retries=0,
        timeout_seconds=None,
        request_id=None,
        created_at=NOON - timedelta(days=1),
        traceparent=None,
        claim_token=uuid4(),
    )
    return Report(task, outcome)


async def test_what_waits_and_runs_is_told_against_the_share(life: Life) -> None:
    other = await directory.create(life.database, name="Other", weight=3)
    await Life(life.database, life.broker, other.id).create(2)
    await life.add_worker(concurrency=10)
    await life.create(5, at=datetime.now(UTC) - timedelta(seconds=100))
    await life.create(2, delay_seconds=3600)
    await life.claim(2)
    told = await read(life)
    assert (told.backlog, told.backlog_is_exact, told.scheduled, told.scheduled_is_exact) == (4, True, 2, True)
    assert told.in_flight == 1
    assert told.fair_share == 3  # a quarter of ten hands, rounded up
    assert told.oldest_age_seconds == pytest.approx(100, abs=20)


async def test_the_share_is_of_what_companies_that_want_no_more_leave(life: Life) -> None:
    content, other = [await directory.create(life.database, name=name) for name in ("Content", "Other")]
    await Life(life.database, life.broker, content.id).create(4)
    await life.claim(5)
    await life.add_worker(concurrency=10)
    await life.create(5)
    assert (await read(life)).fair_share == 6
    await Life(life.database, life.broker, other.id).create()
    assert (await read(life)).fair_share == 3
    fair = {standing.id: standing.fair_share for standing in await board.read(life.database, limit=3)}
    assert fair == {life.company_id: 3, other.id: 3, content.id: pytest.approx(10 / 3)}


async def test_a_company_without_anything_has_figures_and_one_that_is_not_there_none(life: Life) -> None:
    told = await read(life)
    assert (told.backlog, told.oldest_age_seconds, told.in_flight, told.fair_share) == (0, None, 0, 0)
    assert told.tasks == told.jobs == stats.Attempts()
    assert await stats.read(life.database, uuid4()) is None
    assert await stats.read(life.database, "nobody") is None


async def test_a_backlog_is_counted_to_a_bound(life: Life, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stats, "COUNT_MOST", 10)
    await life.create(11)
    told = await read(life)
    assert (told.backlog, told.backlog_is_exact) == (10, False)


async def test_what_workers_settled_is_added_up(life: Life) -> None:
    workers = [Attempts(life.database) for _ in range(2)]
    for worker in workers:
        for waited in (1.0, 1.0, 100.0):
            worker.add([ended(life, Outcome.COMPLETED, waited=waited)])
        worker.add([ended(life, Outcome.RETRY, waited=1.0)])
        worker.add([ended(life, Outcome.FAILED, waited=5000.0, rescues=1)])
        worker.add([ended(life, Outcome.DEFERRED, waited=5000.0)])
        await worker.step()
        await worker.step()
    told = await read(life)
    assert (told.tasks.completed, told.tasks.retried, told.tasks.failed) == (6, 2, 2)
    assert told.tasks.wait_p50_seconds == pytest.approx(1, rel=0.2)
    assert told.tasks.wait_p95_seconds == pytest.approx(100, rel=0.2)
    assert told.jobs == stats.Attempts()


async def test_jobs_have_figures_of_their_own(life: Life) -> None:
    jobs = Attempts(life.database, lane="jobs")
    jobs.add([ended(life, Outcome.COMPLETED, waited=1.0)])
    await jobs.step()
    told = await read(life)
    assert (told.tasks.completed, told.jobs.completed) == (0, 1)


async def test_what_cannot_be_told_is_told_the_next_time(life: Life) -> None:
    attempts = Attempts(life.database)
    attempts.add([ended(life, Outcome.COMPLETED, waited=1.0)])
    await life.execute("alter table rollups rename to elsewhere")
    with pytest.raises(Exception, match="rollups"):
        await attempts.step()
    attempts.add([ended(life, Outcome.COMPLETED, waited=9.0)])
    await life.execute("alter table elsewhere rename to rollups")
    await attempts.step()
    assert (await read(life)).tasks.completed == 2


async def test_attempts_of_a_company_that_is_gone_hold_up_no_others(life: Life) -> None:
    attempts = Attempts(life.database)
    attempts.add([ended(life, Outcome.COMPLETED, waited=1.0, company=uuid4())])
    attempts.add([ended(life, Outcome.COMPLETED, waited=1.0)])
    await attempts.step()
    assert len(await periods(life)) == 1


async def test_the_figures_go_with_their_company(life: Life) -> None:
    await tell(life, at=NOON, completed=1)
    assert await directory.delete(life.database, life.company_id)
    assert await periods(life) == []


async def test_only_what_is_in_the_window_counts(life: Life) -> None:
    for seconds in (0, 55, 65, 300):
        await tell(life, at=NOON - timedelta(seconds=seconds), completed=1)
    assert (await read(life, window_seconds=60, at=NOON)).tasks.completed == 2
    told = await read(life, window_seconds=120, at=NOON)
    assert (told.tasks.completed, told.since, told.seconds) == (3, NOON - timedelta(seconds=120), 120)


async def test_minutes_are_made_of_their_periods_once_they_are_over(life: Life) -> None:
    for second in (0, 10, 59):
        await tell(life, at=NOON + timedelta(seconds=second), completed=2, failed=1, waits="{1,0,2}")
    await roll_up(life.database, at=NOON + timedelta(seconds=89))
    assert 60 not in dict(await periods(life))
    for seconds in (90, 95, 200):
        await roll_up(life.database, at=NOON + timedelta(seconds=seconds))
    assert [starts_at for seconds, starts_at in await periods(life) if seconds == 60] == [NOON]
    minutes = select(Rollup.completed, Rollup.failed, Rollup.waits).where(Rollup.seconds == 60)
    minutes = minutes.where(Rollup.company_id == life.company_id)
    assert await life.database.fetch(minutes) == [(6, 3, [3, 0, 6])]


async def test_a_long_window_is_of_minutes_and_of_what_is_no_minute_yet(life: Life) -> None:
    for minute in range(3):
        for second in (0, 10, 20):
            await tell(life, at=NOON + timedelta(minutes=minute, seconds=second), completed=1, waits="{1}")
    now = NOON + timedelta(minutes=2, seconds=40)
    await roll_up(life.database, at=now)
    assert sum(seconds == 60 for seconds, _ in await periods(life)) == 2
    for window_seconds in (600, 7200):
        assert (await read(life, window_seconds=window_seconds, at=now)).tasks.completed == 9


async def test_periods_are_forgotten_when_they_are_old_but_never_before_their_minute_is_made(life: Life) -> None:
    await tell(life, at=NOON, completed=1)
    later = NOON + timedelta(hours=5)
    await roll_up(life.database, at=later)
    assert await periods(life) == [(60, NOON), (3600, NOON)]
    assert (await read(life, window_seconds=6 * 3600, at=later)).tasks.completed == 1
    await roll_up(life.database, at=NOON + timedelta(days=8))
    assert await periods(life) == []


async def test_a_duty_rolls_up(life: Life) -> None:
    await tell(life, at=NOON.replace(year=2020), completed=1)
    duty = RollUp(life.database)
    while await duty.step() == 0:
        pass
    assert await periods(life) == []


async def test_waits_are_told_apart_by_who_floods(life: Life) -> None:
    quiet = await directory.create(life.database, name="Quiet")
    await life.create(rollups.NOISY_TASKS + 1)

    def counted(kind: str) -> float:
        (family,) = telemetry.TASK_WAITS.collect()
        return next(s.value for s in family.samples if s.name.endswith("_count") and s.labels["kind"] == kind)

    before = counted("noisy"), counted("quiet")
    attempts = Attempts(life.database)
    for _ in range(3):
        attempts.add([ended(life, Outcome.COMPLETED, waited=60.0)])
    attempts.add([ended(life, Outcome.COMPLETED, waited=0.01, company=quiet.id)])
    await attempts.step()
    assert (counted("noisy") - before[0], counted("quiet") - before[1]) == (3, 1)


async def test_figures_read_their_company_by_index_whatever_the_history(life: Life) -> None:
    await life.create(500)
    async with life.database.transaction() as connection:
        await connection.execute("select set_config('search_path', 'taketurns', true)")
        await connection.execute(
            "insert into rollups select gen_random_uuid(), 'tasks', 10, now() - n * interval '10 s', 1, 0, 0, '{1}'"
            " from generate_series(1, 5000) n"
        )
        for table in ("rollups", "pending_tasks", "scheduled_tasks"):
            await connection.execute(f"select pg_stat_reset_single_table_counters('{table}'::regclass)".encode())
        await connection.execute("select * from stats('acme', 600, 10, 100)")
        await connection.execute("select pg_stat_force_next_flush()")
    async with life.database.connection() as connection:
        cursor = await connection.execute(
            "select relname, seq_scan, seq_tup_read, idx_tup_fetch from pg_stat_user_tables"
            " where relname in ('rollups', 'pending_tasks', 'scheduled_tasks') order by 1"
        )
        rows = await cursor.fetchall()
    assert all(scans == 0 for _, scans, _, _ in rows)
    assert all(fetched <= 102 for *_, fetched in rows)
