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
from tests.waiting import eventually
from tests.worker.house import House


async def test_nothing_of_a_deleted_company_starts_and_what_runs_ends_once(
    house: House, caplog: pytest.LogCaptureFixture
) -> None:
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
    running = await house.add("stays", count=3)
    new = NewSchedule(
        name="each minute",
        type="passes",
        payload="{}",
        queue="default",
        priority=5,
        max_retries=0,
        timeout_seconds=None,
        cron=schedule.read("* * * * *", "UTC"),
    )
    await timetable.create(house.database, "acme", new)
    caplog.set_level(logging.INFO)
    ticking = Ticking(house.database, announce=house.broker.notifier.announce)
    async with house.working(
        registry, concurrency=4, ticking=ticking, duties=[Forgetting(house.database)], shutdown_grace_seconds=1
    ):
        await eventually(lambda: len(began) == 3)
        await house.add("stays", count=20)
        await house.add_tasks([NewTask(type="passes", payload="{}", delay_seconds=seconds) for seconds in (0.5, 1.0)])
        company = await directory.find(house.database, "acme")
        assert company is not None
        await eventually(lambda: len(began) == 4, within=8)
        assert await directory.delete(house.database, "acme", is_forced=True)
        before = list(began)
        house.execute("update taketurns.schedules set next_tick_at = now()")
        others = await house.add("passes", company="zeta", count=20)
        await eventually(lambda: house.are("completed", others))
        await eventually(lambda: len(ended) == 4)
        assert sorted(ended) == sorted(before)
        assert {str(task) for task in running} < set(before)
        later = await house.add_tasks([NewTask(type="passes", payload="{}", delay_seconds=1.5)], company="zeta")
        await eventually(lambda: house.are("completed", later))
    assert set(began) == set(before) | {str(task) for task in [*others, *later]}
    assert len(ended) == 4
    told = [record for record in caplog.records if str(company.id) in record.getMessage()]
    assert len(told) < 20
    assert [record for record in told if record.levelno >= logging.ERROR] == []
