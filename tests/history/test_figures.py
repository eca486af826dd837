"""The queue's figures are right where tasks are few, estimated where they are many, and never cost a scan."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from taketurns.companies import directory
from taketurns.engine.errors import Unavailable
from taketurns.engine.task import Outcome, Status
from taketurns.history import figures
from taketurns.storage.database import Database
from tests.history.conftest import Life


async def test_tasks_are_counted_by_status(life: Life) -> None:
    await life.create(2, delay_seconds=3600)
    await life.create(10)
    await life.end(await life.claim(3))
    await life.end(await life.claim(2), Outcome.FAILED)
    await life.end(await life.claim(1), Outcome.CANCELLED)
    await life.claim(1)
    assert (await figures.read(life.database)).tasks_by_status == {
        Status.SCHEDULED: 2,
        Status.PENDING: 3,
        Status.PROCESSING: 1,
        Status.COMPLETED: 3,
        Status.FAILED: 2,
        Status.CANCELLED: 1,
    }


async def test_the_oldest_is_the_one_that_has_been_due_longest(life: Life) -> None:
    assert (await figures.read(life.database)).oldest_eligible_seconds == 0
    now = datetime.now(UTC)
    other = await directory.create(life.database, name="Other", slug="other")
    await life.create(3, at=now - timedelta(seconds=100))
    await Life(life.database, life.broker, other.id).create(at=now - timedelta(seconds=300))
    assert (await figures.read(life.database)).oldest_eligible_seconds == pytest.approx(300, abs=20)


async def test_tasks_that_are_not_due_and_those_of_paused_companies_are_no_backlog(life: Life) -> None:
    long_ago = datetime.now(UTC) - timedelta(days=1)
    await life.create(delay_seconds=2 * 24 * 3600, at=long_ago)
    paused = await directory.create(life.database, name="Paused", paused=True)
    await Life(life.database, life.broker, paused.id).create(at=long_ago)
    assert (await figures.read(life.database)).oldest_eligible_seconds == 0


async def test_what_is_many_is_capped_or_estimated(life: Life, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(figures, "CAP", 50)
    await life.create(400)
    await life.end(await life.claim(200))
    await life.end(await life.claim(100), Outcome.FAILED)
    await life.execute("analyze tasks")
    counts = (await figures.read(life.database)).tasks_by_status
    assert counts == {
        Status.SCHEDULED: 0,
        Status.PENDING: 50,
        Status.PROCESSING: 0,
        Status.COMPLETED: 200,
        Status.FAILED: 100,
        Status.CANCELLED: 0,
    }


async def test_figures_of_many_tasks_that_were_never_analysed_are_no_error(
    life: Life, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(figures, "CAP", 5)
    await life.create(10)
    assert (await figures.read(life.database)).tasks_by_status[Status.COMPLETED] == 0


async def test_a_locked_table_is_waited_for_less_than_a_second(life: Life, database_url: str) -> None:  # fault 159
    other = Database(database_url, pool_size=1)
    await other.open()
    try:
        async with other.transaction() as connection:
            await connection.execute("lock table taketurns.pending_tasks")
            with pytest.raises(Unavailable):
                await figures.read(life.database)
        assert (await figures.read(life.database)).tasks_by_status[Status.PENDING] == 0
    finally:
        await other.close()


async def test_the_walk_reads_heads_and_not_the_backlog(life: Life) -> None:
    await life.create(1000)
    await life.create(1000)
    other = await directory.create(life.database, name="Other")
    await Life(life.database, life.broker, other.id).create(500)
    async with life.database.transaction() as connection:
        await connection.execute(figures._SETTINGS, (life.database.schema, "5000"))
        cursor = await connection.execute(b"explain (analyze, format text) " + figures._QUERY, {"most": figures.CAP})
        plan = [line for (line,) in await cursor.fetchall()]
    scans = [line for line in plan if "Index" in line and "pending_tasks_pkey" in line]
    assert len(scans) == 2  # the first head, and the next head after each
    assert all("rows=1" in line.replace("rows=1.00", "rows=1").split("actual")[1] or "rows=0" in line for line in scans)
    assert not any("Sort" in line and "pending" in line for line in plan)


async def test_the_companies_with_the_most_tasks_are_told_and_the_others_together(
    life: Life, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(figures, "COMPANIES_TOLD", 2)
    for number in range(1, 5):
        other = await directory.create(life.database, name=f"other {number}", slug=f"other-{number}")
        await Life(life.database, life.broker, other.id).create(number)
    await life.create(7)
    found = await figures.read(life.database)
    assert found.waiting == {"acme": 7, "other-4": 4, None: 6}
    assert found.in_flight == {}
    await life.claim(12)
    found = await figures.read(life.database)
    assert sum(found.waiting.values()) == 5
    assert sum(found.in_flight.values()) == 12
    assert len(found.in_flight) == 3


async def test_backlogs_are_counted_to_a_bound_for_each_company_and_for_all(
    life: Life, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(figures, "FEW", 5)
    await life.create(60)
    other = await directory.create(life.database, name="Other", slug="other")
    await Life(life.database, life.broker, other.id).create(40)
    assert (await figures.read(life.database)).waiting == {"acme": 60, "other": 40}
    monkeypatch.setattr(figures, "MANY", 40)
    assert (await figures.read(life.database)).waiting == {"acme": 20, "other": 20}
    monkeypatch.setattr(figures, "CAP", 10)
    assert (await figures.read(life.database)).waiting == {"acme": 10, "other": 10}
    monkeypatch.setattr(figures, "COMPANIES_MOST", 1)
    assert list((await figures.read(life.database)).waiting.values()) == [10]


async def test_loads_are_walked_from_company_to_company_by_index(life: Life) -> None:
    await life.create(300)
    bounds = {"top": 10, "companies": 1000, "few": 100, "many": 1000, "most": 10_000}
    async with life.database.transaction() as connection:
        await connection.execute(figures._SETTINGS, (life.database.schema, "5000"))
        cursor = await connection.execute(b"explain (analyze, format text) " + figures._LOADS, bounds)
        plan = [line for (line,) in await cursor.fetchall()]
    walks = [line for line in plan if "on pending_tasks" in line]
    assert walks
    assert all("pending_tasks_company_id_task_id_idx" in line for line in walks), "\n".join(plan)
