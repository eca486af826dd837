"""Schedules are made, changed and deleted, and know when they tick next."""

from __future__ import annotations

import asyncio
import uuid
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from taketurns.companies import directory
from taketurns.engine.errors import InvalidOption, UnknownCompany
from taketurns.engine.schedule import Missed
from taketurns.schedules import timetable
from taketurns.schedules.errors import NameTaken
from tests.schedules.calendar import MINUTE, START, Calendar, minutes, new

INDIA: dict[str, Any] = {"expression": "0 9 * * *", "time_zone": "Asia/Kolkata"}


async def test_a_schedule_is_found_as_it_was_made(calendar: Calendar) -> None:
    made = await calendar.add(
        "morning", **INDIA, missed=Missed.ALL, queue="mail", priority=2, max_retries=1, timeout_seconds=3.5
    )
    assert await calendar.schedule(made.id) == made
    assert (made.name, made.type, made.payload, made.queue, made.priority) == ("morning", "work", "{}", "mail", 2)
    assert (made.max_retries, made.timeout_seconds, made.missed, made.paused) == (1, 3.5, "all", False)
    assert (made.declared, made.last_tick_at, made.error) == (False, None, None)
    assert made.next_tick_at == datetime(2027, 3, 2, 3, 30, tzinfo=UTC)
    assert made.next_ticks(2) == [datetime(2027, 3, day, 3, 30, tzinfo=UTC) for day in (2, 3)]


async def test_the_time_zone_stays_right_after_each_change(calendar: Calendar) -> None:
    """Fault 136."""
    made = await calendar.add("morning", **INDIA)
    later = await calendar.change(made, expression="0 10 * * *")
    assert (later.time_zone, later.next_tick_at) == ("Asia/Kolkata", datetime(2027, 3, 2, 4, 30, tzinfo=UTC))
    moved = await calendar.change(made, time_zone="Europe/Berlin")
    assert (moved.expression, moved.next_tick_at) == ("0 10 * * *", datetime(2027, 3, 2, 9, tzinfo=UTC))
    for field, value in (("expression", "0 0 30 2 *"), ("time_zone", "europe/berlin")):
        with pytest.raises(InvalidOption):
            await timetable.change(calendar.database, "acme", made.id, {field: value})
    assert await calendar.schedule(made.id) == moved


async def test_a_name_belongs_to_one_schedule_of_its_company(calendar: Calendar) -> None:
    made = await asyncio.gather(*(calendar.add("morning") for _ in range(6)), return_exceptions=True)
    assert sum(isinstance(one, timetable.Schedule) for one in made) == 1
    assert sum(isinstance(one, NameTaken) for one in made) == 5
    await calendar.add("morning", company="zeta")
    other = await calendar.add("evening")
    with pytest.raises(NameTaken):
        await calendar.change(other, name="morning")


async def test_no_company_has_the_schedules_of_another(calendar: Calendar) -> None:
    made = await calendar.add()
    assert await timetable.find(calendar.database, "zeta", made.id) is None
    assert await timetable.change(calendar.database, "zeta", made.id, {"paused": True}) is None
    assert not await timetable.delete(calendar.database, "zeta", made.id)
    assert await timetable.page(calendar.database, "zeta", limit=9) == timetable.Page([], None)
    assert await timetable.page(calendar.database, "nobody", limit=9) is None
    with pytest.raises(UnknownCompany):
        await timetable.create(calendar.database, uuid.uuid4(), new("morning"))
    assert await calendar.schedule(made.id) == made


async def test_schedules_are_paged(calendar: Calendar) -> None:
    made = [await calendar.add(f"number {number}") for number in range(5)]
    first = await timetable.page(calendar.database, "acme", limit=2, at=START)
    assert first is not None
    assert first.schedules == made[:2:-1]
    second = await timetable.page(calendar.database, "acme", limit=3, after=first.next_after, at=START)
    assert second == timetable.Page(made[2::-1], None)


async def test_a_paused_schedule_does_not_tick_and_makes_up_for_nothing(calendar: Calendar) -> None:
    made = await calendar.add(missed=Missed.ALL)
    paused = await calendar.change(made, paused=True)
    assert (paused.next_tick_at, paused.next_ticks(5)) == (None, [])
    await calendar.ticking.make_due(at=START + 10 * MINUTE)
    resumed = await calendar.change(made, paused=False, at=START + 10 * MINUTE)
    assert resumed.next_tick_at == minutes(11, 11)[0]
    await calendar.ticking.make_due(at=START + 11 * MINUTE)
    assert calendar.ticks(made) == minutes(11, 11)


async def test_a_schedule_can_be_made_paused(calendar: Calendar) -> None:
    made = await calendar.add(paused=True)
    assert made.next_tick_at is None
    assert (await calendar.change(made, paused=False)).next_tick_at == minutes(1, 1)[0]


async def test_a_change_of_something_else_loses_no_tick(calendar: Calendar) -> None:
    made = await calendar.add()
    changed = await calendar.change(made, payload='{"a": 1}', queue="other", at=START + MINUTE)
    assert changed.next_tick_at == made.next_tick_at
    await calendar.ticking.make_due(at=START + MINUTE)
    assert calendar.ticks(made) == minutes(1, 1)
    assert calendar.value("select payload->>'a' from taketurns.tasks") == "1"


async def test_a_tick_that_was_made_is_over_though_the_clock_was_put_back(calendar: Calendar) -> None:
    made = await calendar.add("hourly", expression="0 * * * *")
    await calendar.ticking.make_due(at=START + timedelta(hours=1))
    changed = await calendar.change(made, expression="0 */1 * * *", at=START)
    assert changed.next_tick_at == START.replace(hour=14, second=0)


async def test_a_deleted_company_takes_its_schedules_along(calendar: Calendar) -> None:
    made, other = await calendar.add(), await calendar.add(company="zeta")
    assert await directory.delete(calendar.database, "acme")
    assert calendar.execute("select id from taketurns.schedules") == [(other.id,)]
    await calendar.ticking.make_due(at=START + MINUTE)
    assert (calendar.ticks(made), calendar.ticks(other)) == ([], minutes(1, 1))
