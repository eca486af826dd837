"""Schedules that code declares, on the engine of the pytest plugin."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from typing import Any

import pytest

from taketurns import ConfigurationError, InvalidOption, InvalidPayload, Taketurns
from taketurns.assembly.handler import Handler
from taketurns.engine import schedule
from taketurns.schedules import timetable
from taketurns.schedules.timetable import Schedule
from taketurns.testing.engine import Engine


class Program:
    """An application with one handler; another version of it has other schedules."""

    def __init__(self) -> None:
        self.tt = Taketurns()

        @self.tt.task(queue="reports", retries=1)
        async def report(kind: str = "short") -> str:
            return kind

        self.report: Handler[..., ..., Any] = report


async def schedules(taketurns: Engine, company: str = "acme") -> Sequence[Schedule]:
    async with taketurns._client.broker() as broker:
        page = await timetable.page(broker.database, company, limit=100)
    return [] if page is None else page.schedules


async def change(taketurns: Engine, told: Schedule, **changes: Any) -> None:
    async with taketurns._client.broker() as broker:
        assert await timetable.change(broker.database, told.company_id, told.id, changes)


async def test_a_declared_schedule_ticks_as_the_clock_moves_on(taketurns: Engine) -> None:
    program = Program()
    program.tt.schedule("0 * * * *", time_zone="Europe/Berlin", company="acme", name="hourly")(
        program.report, kind="long"
    )
    await program.tt.apply_schedules()
    await taketurns.advance(hours=3)
    assert [task.payload for task in taketurns.tasks(program.report)] == [{"kind": "long"}] * 3
    (first, second, third) = [task.run_after for task in taketurns.tasks()]
    assert (second - first, third - second) == (timedelta(hours=1), timedelta(hours=1))
    await taketurns.drain()
    assert [task.result for task in taketurns.finished()] == ["long"] * 3
    assert {(task.queue, task.max_retries) for task in taketurns.tasks()} == {("reports", 1)}


async def test_a_handler_that_needs_no_arguments_is_decorated(taketurns: Engine) -> None:
    tt = Taketurns()

    @tt.schedule("30 2 * * *", time_zone="Europe/Berlin", company=["acme", "zeta"])
    @tt.task
    async def tidy() -> None: ...

    await tt.apply_schedules()
    await taketurns.advance(days=2)
    assert len(taketurns.tasks(tidy)) == 4
    assert [told.name for told in await schedules(taketurns, "zeta")] == ["tidy"]


async def test_a_schedule_of_every_company_is_of_those_there_are_when_it_is_applied(taketurns: Engine) -> None:
    program = Program()
    program.tt.schedule("0 3 * * *")(program.report)
    await taketurns.company("acme")
    await program.tt.apply_schedules()
    await taketurns.company("late")
    assert (len(await schedules(taketurns)), len(await schedules(taketurns, "late"))) == (1, 0)
    await program.tt.apply_schedules()
    assert (len(await schedules(taketurns)), len(await schedules(taketurns, "late"))) == (1, 1)


async def test_what_is_applied_again_changes_nothing_and_undoes_nothing(taketurns: Engine) -> None:
    program = Program()
    program.tt.schedule("0 3 * * *", company="acme")(program.report)
    await program.tt.apply_schedules()
    (made,) = await schedules(taketurns)
    assert made.declared
    await change(taketurns, made, expression="0 4 * * *", paused=True)
    (changed,) = await schedules(taketurns)
    await program.tt.apply_schedules()
    (after,) = await schedules(taketurns)
    assert (after.expression, after.paused, after.updated_at) == ("0 4 * * *", True, changed.updated_at)


async def test_what_the_code_changes_is_changed_and_a_pause_stays(taketurns: Engine) -> None:
    before, after = Program(), Program()
    before.tt.schedule("0 3 * * *", company="acme", name="report")(before.report)
    before.tt.schedule("0 4 * * *", company="acme", name="other")(before.report)
    await before.tt.apply_schedules()
    (_, made) = await schedules(taketurns)
    await change(taketurns, made, paused=True)
    after.tt.schedule("0 5 * * *", company="acme", name="report", missed="all")(
        after.report.using(priority=1), kind="long"
    )
    await after.tt.apply_schedules()
    (told,) = await schedules(taketurns)
    assert (told.id, told.expression, told.missed, told.priority) == (made.id, "0 5 * * *", "all", 1)
    assert (told.payload, told.paused, told.next_tick_at) == ('{"kind": "long"}', True, None)


async def test_schedules_of_the_api_and_of_other_programs_are_left_alone(taketurns: Engine) -> None:
    program, other = Program(), Taketurns()

    @other.schedule("0 6 * * *", company="acme", name="of another program")
    @other.task
    async def audit() -> None: ...

    await other.apply_schedules()
    (foreign,) = await schedules(taketurns)
    new = timetable.NewSchedule(
        name="report", type="report", payload="{}", queue="mail", priority=5, max_retries=0, timeout_seconds=None,
        cron=schedule.read("0 7 * * *", "UTC"),
    )  # fmt: skip
    async with taketurns._client.broker() as broker:
        by_hand = await timetable.create(broker.database, "acme", new)
    program.tt.schedule("0 3 * * *", company="acme")(program.report)
    await program.tt.apply_schedules()
    assert {told.id: told.expression for told in await schedules(taketurns)} == {
        foreign.id: "0 6 * * *",
        by_hand.id: "0 7 * * *",
    }


def test_what_cannot_be_declared_is_refused_at_once() -> None:
    program = Program()
    for given, field in (
        ({"expression": "0 0 30 2 *"}, "expression"),
        ({"expression": "0 9 * * *", "time_zone": "utc"}, "time_zone"),
        ({"expression": "0 9 * * *", "missed": "some"}, "missed"),
    ):
        with pytest.raises(InvalidOption) as refusal:
            program.tt.schedule(**given)  # type: ignore[arg-type]
        assert refusal.value.field == field
    daily = program.tt.schedule("0 9 * * *", company="acme")
    with pytest.raises(InvalidPayload):
        daily(program.report, sort="long")
    with pytest.raises(InvalidOption, match="run at its ticks"):
        daily(program.report.using(delay=5))
    with pytest.raises(TypeError, match="by name"):
        daily(program.report, "long")
    daily(program.report)
    with pytest.raises(ConfigurationError, match="declared twice"):
        program.tt.schedule("0 10 * * *", company=["acme", "zeta"])(program.report)
    program.tt.schedule("0 10 * * *", company="zeta")(program.report)
