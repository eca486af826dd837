"""Fault 163: a company is deleted while its tasks wait and run."""

from __future__ import annotations

import asyncio
import logging

import pytest

from taketurns.companies import directory
from taketurns.companies.deletion import Forgetting
from taketurns.engine import schedule
from taketurns.engine.registry import Registry
from taketurns.engine.task import NewTask
from taketurns.execution import Context
from taketurns.schedules import timetable
from taketurns.schedules.ticking import Ticking
from taketurns.schedules.timetable import NewSchedule
from taketurns.storage.database import call
from tests.companies.test_directory import rows_of
from tests.waiting import eventually
from tests.worker.house import House

EACH_MINUTE = NewSchedule(
    name="each minute",
    type="passes",
    payload="{}",
    queue="default",
    priority=5,
    max_retries=0,
    timeout_seconds=None,
    cron=schedule.read("* * * * *", "UTC"),
)


async def test_nothing_of_a_deleted_company_starts_and_what_runs_ends_once(
    house: House, caplog: pytest.LogCaptureFixture
) -> None:
    """Before anything that it left is forgotten: it is up to the deletion itself."""
    registry = Registry()
    began: list[str] = []
    ended: list[str] = []

    async def stays(ctx: Context) -> None:
        began.append(str(ctx.task_id))
        try:
            await asyncio.Event().wait()
        finally:
            ended.append(str(ctx.task_id))

    async def passes(ctx: Context) -> None:
        began.append(str(ctx.task_id))

    registry.add(stays, context_type=Context)
    registry.add(passes, context_type=Context)
    running = await house.add("stays", count=4)
    await timetable.create(house.database, "acme", EACH_MINUTE)
    company = await directory.find(house.database, "acme")
    assert company is not None
    caplog.set_level(logging.INFO)
    ticking = Ticking(house.database, announce=house.broker.notifier.announce)
    async with house.working(registry, concurrency=4, ticking=ticking, shutdown_grace_seconds=1):
        await eventually(lambda: len(began) == 4)
        waiting = await house.add("passes", count=20)
        due_soon = await house.add_tasks([NewTask(type="passes", payload="{}", delay_seconds=s) for s in (0.1, 1.0)])
        house.execute("update taketurns.schedules set next_tick_at = now() + interval '1 s'")
        async with house.database.transaction() as connection:
            assert await call(connection, house.database.schema, "delete_company", company.id, 2_000, True) == [
                ("deleted",)
            ]
        await eventually(lambda: len(ended) == 4)
        others = await house.add("passes", company="zeta", count=20)
        await eventually(lambda: house.are("completed", others))
        later = await house.add_tasks([NewTask(type="passes", payload="{}", delay_seconds=1.5)], company="zeta")
        await eventually(lambda: house.are("completed", later))
        assert house.are("pending", [*waiting, *due_soon])
    assert sorted(began) == sorted(str(task) for task in [*running, *others, *later])
    assert sorted(ended) == sorted(str(task) for task in running)
    told = [record for record in caplog.records if str(company.id) in record.getMessage()]
    assert len(told) < 20
    assert [record for record in caplog.records if record.levelno >= logging.ERROR] == []


async def test_workers_forget_what_a_deletion_has_left(house: House) -> None:
    await house.add("unknown", count=20)
    company = await directory.find(house.database, "acme")
    assert company is not None
    async with house.database.transaction() as connection:
        await call(connection, house.database.schema, "delete_company", company.id, 2_000, True)
    assert house.value("select count(*) from taketurns.tasks") == 20
    async with house.working(Registry(), duties=[Forgetting(house.database)]):
        await eventually(lambda: house.value("select count(*) from taketurns.deletions") == 0)
    assert await rows_of(house.database, company.id) == {}
