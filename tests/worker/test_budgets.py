"""A task whose provider's budget has no room is put off, with no penalty, in every kind of handler."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from taketurns.engine.errors import OverBudget
from taketurns.engine.registry import Registry
from taketurns.engine.task import NewTask, PassReport
from taketurns.execution import Context
from taketurns.storage.budgets import PostgresBudgets
from taketurns.worker import run_pass
from tests.worker.house import House


@pytest.fixture
def registry() -> Registry:
    return Registry()


async def a_pass(house: House, registry: Registry) -> PassReport:
    return await run_pass(broker=house.broker, registry=registry, budgets=PostgresBudgets(house.database))


def waits(house: House) -> list[float]:
    """Seconds from when a task was put off until it is due."""
    rows = house.execute(
        "select extract(epoch from s.run_after - e.at)::float8 from taketurns.scheduled_tasks s"
        " join taketurns.task_events e on e.task_id = s.task_id and e.kind = 'deferred'"
    )
    return sorted(seconds for (seconds,) in rows)


async def asynchronous(ctx: Context) -> None:
    async with ctx.budget("mail", limit=2, per="1h"):
        await asyncio.sleep(0)


def synchronous(ctx: Context) -> None:
    with ctx.budget("mail", limit=2, per="1h"):
        pass


def with_a_loop_of_its_own(ctx: Context) -> None:
    asyncio.run(asynchronous(ctx))


@pytest.mark.parametrize("handler", [asynchronous, synchronous, with_a_loop_of_its_own])
async def test_what_is_over_budget_waits_until_there_is_room(house: House, registry: Registry, handler: Any) -> None:
    registry.add(handler, name="send", context_type=Context)
    tasks = await house.add("send", count=5)
    assert await a_pass(house, registry) == PassReport(claimed=5, completed=2, deferred=3)
    assert house.statuses(tasks) == {"completed": 2, "scheduled": 3}
    assert all(3500 < seconds < 3600 + 2 * 1800 + 180 for seconds in waits(house))
    assert house.value("select max(retry_count) from taketurns.scheduled_tasks") == 0
    assert house.value("select error from taketurns.task_events limit 1") == "the budget 'mail' has no room"


async def test_a_task_without_retries_is_put_off_as_well(house: House, registry: Registry) -> None:
    async def send(ctx: Context) -> None:
        async with ctx.budget("mail", limit=1, per="1h"):
            pass

    registry.add(send, context_type=Context)
    await house.add_tasks([NewTask(type="send", payload="{}", max_retries=0)] * 2)
    assert await a_pass(house, registry) == PassReport(claimed=2, completed=1, deferred=1)


async def test_a_provider_that_refuses_stops_all_calls_for_as_long_as_it_asks(house: House, registry: Registry) -> None:
    calls = []

    async def send(ctx: Context) -> None:
        async with ctx.budget("mail", limit=1000, per="1m") as budget:
            calls.append(ctx.task_id)
            raise budget.cool_down("300")

    registry.add(send, context_type=Context)
    await house.add("send", count=3)
    report = await run_pass(
        broker=house.broker, registry=registry, concurrency=1, budgets=PostgresBudgets(house.database)
    )
    assert report == PassReport(claimed=3, deferred=3)
    assert len(calls) == 1
    assert all(290 < seconds < 301 for seconds in waits(house))


# Fault 176
@pytest.mark.parametrize("said", ["soon", "", None, "Thu, 99 Foo"])
async def test_junk_in_a_retry_after_counts_as_the_budgets_own_cooldown(
    house: House, registry: Registry, said: str | None
) -> None:
    def send(ctx: Context) -> None:
        with ctx.budget("mail", limit=1000, per="1m", cooldown="10m") as budget:
            raise budget.cool_down(said)

    registry.add(send, context_type=Context)
    await house.add("send")
    assert (await a_pass(house, registry)).deferred == 1
    (seconds,) = waits(house)
    assert 590 < seconds < 601


async def test_a_cooldown_that_is_not_raised_lets_the_task_end(house: House, registry: Registry) -> None:
    async def send(ctx: Context) -> None:
        async with ctx.budget("mail", limit=1000, per="1m") as budget:
            budget.cool_down(60)

    registry.add(send, context_type=Context)
    await house.add("send")
    assert (await a_pass(house, registry)).completed == 1
    await house.add("send")
    assert (await a_pass(house, registry)).deferred == 1


async def test_a_handler_may_do_without_the_provider(house: House, registry: Registry) -> None:
    async def send(ctx: Context) -> str:
        try:
            async with ctx.budget("mail", limit=1, per="1h"):
                return "by mail"
        except OverBudget:
            return "by letter"

    registry.add(send, context_type=Context)
    tasks = await house.add("send", count=2)
    assert (await a_pass(house, registry)).completed == 2
    assert sorted(house.outcome(task)[1] for task in tasks) == ["by letter", "by mail"]


async def test_an_async_handler_that_writes_with_is_told(house: House, registry: Registry) -> None:
    async def send(ctx: Context) -> None:
        with ctx.budget("mail", limit=1, per="1h"):
            pass

    registry.add(send, context_type=Context)
    (task,) = await house.add_tasks([NewTask(type="send", payload="{}", max_retries=0)])
    await a_pass(house, registry)
    assert "async with" in str(house.outcome(task)[2])


async def test_where_no_budgets_are_kept_that_is_said(house: House, registry: Registry) -> None:
    registry.add(asynchronous, name="send", context_type=Context)
    (task,) = await house.add_tasks([NewTask(type="send", payload="{}", max_retries=0)])
    await run_pass(broker=house.broker, registry=registry)
    assert "there is none here" in str(house.outcome(task)[2])
