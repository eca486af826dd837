"""Every tick makes exactly one task, whoever dies, stops or fails meanwhile."""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import signal
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from multiprocessing.process import BaseProcess

import psycopg
import pytest

from taketurns.brokers.postgres import PostgresBroker
from taketurns.companies import directory
from taketurns.engine import limits
from taketurns.engine.errors import Unavailable
from taketurns.engine.registry import Registry
from taketurns.engine.schedule import Missed
from taketurns.schedules.ticking import Ticking
from taketurns.storage.database import Database
from taketurns.worker import run_pass
from tests import forks
from tests.schedules.calendar import MINUTE, START, Calendar, minutes
from tests.schedules.process import make_ticks
from tests.waiting import eventually, soon


async def test_a_tick_makes_a_task_as_the_schedule_says(calendar: Calendar) -> None:
    made = await calendar.add(queue="mail", priority=2, max_retries=1, timeout_seconds=3.5, payload={"to": "Ada"})
    ticked = await calendar.ticking.make_due(at=START)
    assert (ticked.made, ticked.next_due) == (0, minutes(1, 1)[0])
    ticked = await calendar.ticking.make_due(at=START + MINUTE)
    assert (ticked.made, ticked.failed, ticked.next_due) == (1, 0, minutes(2, 2)[0])
    (task,) = calendar.execute(
        "select company_id, schedule_id, type, queue, priority, max_retries, timeout_seconds, payload, created_at,"
        " run_after from taketurns.tasks"
    )
    due = minutes(1, 1)[0]
    assert task == (made.company_id, made.id, "work", "mail", 2, 1, 3.5, {"to": "Ada"}, START + MINUTE, due)
    assert calendar.announced == ["mail"]
    after = await calendar.schedule(made.id)
    assert (after.next_tick_at, after.last_tick_at) == (minutes(2, 2)[0], due)
    assert after.updated_at == made.updated_at


async def test_a_tick_makes_no_second_task(calendar: Calendar) -> None:
    made = await calendar.add()
    for _ in range(3):
        await calendar.ticking.make_due(at=START + MINUTE)
    assert calendar.ticks(made) == minutes(1, 1)


@pytest.mark.parametrize(
    ("missed", "expected"),
    [(Missed.SKIP, minutes(10, 10)), (Missed.LAST, minutes(10, 10)), (Missed.ALL, minutes(1, 10))],
)
async def test_missed_ticks_are_made_up_for_as_the_schedule_says(
    calendar: Calendar, missed: Missed, expected: list[datetime]
) -> None:
    made = await calendar.add(missed=missed)
    await calendar.ticking.make_due(at=START + 10 * MINUTE)
    assert calendar.ticks(made) == expected
    await calendar.ticking.make_due(at=START + 11 * MINUTE)
    assert calendar.ticks(made) == [*expected, *minutes(11, 11)]


async def test_a_tick_that_is_skipped_is_over(calendar: Calendar) -> None:
    made = await calendar.add("daily", expression="0 13 * * *", missed=Missed.SKIP)
    ticked = await calendar.ticking.make_due(at=START + timedelta(hours=2))
    assert (ticked.made, calendar.announced) == (0, [])
    assert (await calendar.schedule(made.id)).next_tick_at == datetime(2027, 3, 2, 13, tzinfo=UTC)


async def test_no_more_than_a_hundred_are_made_up_for(calendar: Calendar) -> None:
    made = await calendar.add(missed=Missed.ALL)
    await calendar.ticking.make_due(at=START + timedelta(days=30))
    assert calendar.ticks(made) == minutes(30 * 1440 - limits.MISSED_TICKS_MAX + 1, 30 * 1440)


async def test_schedules_that_differ_in_company_or_queue_or_payload_alone_are_several(calendar: Calendar) -> None:
    """Fault 137."""
    made = [
        await calendar.add("same"),
        await calendar.add("same", company="zeta"),
        await calendar.add("in another queue", queue="other"),
        await calendar.add("with another payload", payload={"a": 1}),
    ]
    await calendar.ticking.make_due(at=START + MINUTE)
    assert [calendar.ticks(schedule) for schedule in made] == [minutes(1, 1)] * 4
    assert calendar.tasks() == {"default": 3, "other": 1}


async def test_a_change_of_clocks_makes_one_task(calendar: Calendar) -> None:
    """Fault 129."""
    spring, autumn = datetime(2027, 3, 27, 12, tzinfo=UTC), datetime(2027, 10, 30, 12, tzinfo=UTC)
    for before, expected in [
        (spring, datetime(2027, 3, 28, 1, tzinfo=UTC)),
        (autumn, datetime(2027, 10, 31, 0, 30, tzinfo=UTC)),
    ]:
        made = await calendar.add(f"{before}", expression="30 2 * * *", time_zone="Europe/Berlin", at=before)
        for quarter in range(40, 72):
            await calendar.ticking.make_due(at=before + quarter * timedelta(minutes=15))
        assert calendar.ticks(made) == [expected]


@pytest.mark.parametrize(
    ("planted", "told"),
    [
        ("time_zone = 'Mars/Base'", "time_zone: must be"),
        ("expression = 'x y z'", "expression: must be"),
        ("expression = '0 0 30 2 *'", "expression: bad day"),
        ("payload = 'null'", "payload: must be an object"),
        ("queue = 'a b'", "queue: must be"),
        ("priority = 99", "priority: must be"),
        ("company_id = gen_random_uuid()", "the company is no more"),
    ],
)
async def test_a_row_that_cannot_be_is_paused_and_others_tick_on_time(
    calendar: Calendar, planted: str, told: str
) -> None:
    """Fault 135."""
    bad = await calendar.add("bad")
    good = [await calendar.add(f"good {number}") for number in range(5)]
    calendar.execute(f"update taketurns.schedules set {planted} where id = %s", bad.id)
    for number in (1, 2):
        await calendar.ticking.make_due(at=START + number * MINUTE)
    assert [calendar.ticks(schedule) for schedule in good] == [minutes(1, 2)] * 5
    assert calendar.ticks(bad) == []
    ((paused, next_tick_at, error),) = calendar.execute(
        "select paused, next_tick_at, error from taketurns.schedules where id = %s", bad.id
    )
    assert (paused, next_tick_at) == (True, None)
    assert error.startswith(told)


async def test_a_row_that_was_paused_for_its_fault_goes_on_once_it_is_mended(calendar: Calendar) -> None:
    made = await calendar.add()
    calendar.execute("update taketurns.schedules set time_zone = 'Mars/Base'")
    await calendar.ticking.make_due(at=START + MINUTE)
    mended = await calendar.change(made, time_zone="UTC", paused=False, at=START + MINUTE)
    assert (mended.error, mended.next_tick_at) == (None, minutes(2, 2)[0])
    await calendar.ticking.make_due(at=START + 2 * MINUTE)
    assert calendar.ticks(made) == minutes(2, 2)


REFUSE_EVERY_THIRD = """
create sequence taketurns.inserts;
create function taketurns.refuse() returns trigger language plpgsql as $$
begin
    if nextval('taketurns.inserts') % 3 = 0 then raise exception 'every third'; end if;
    return new;
end $$;
create trigger refuse before insert on taketurns.tasks for each row execute function taketurns.refuse()
"""


async def test_an_insert_that_fails_delays_a_tick_and_loses_none(calendar: Calendar) -> None:
    """Fault 127."""
    made = [await calendar.add(f"number {number}", missed=Missed.ALL) for number in range(10)]
    calendar.execute(REFUSE_EVERY_THIRD)
    failed = 0
    for number in range(1, 6):
        ticked = await calendar.ticking.make_due(at=START + number * MINUTE)
        failed += ticked.failed
    told = calendar.value("select max(error) from taketurns.schedules")
    assert failed > 5
    assert told == "every third"
    for _ in range(20):
        await calendar.ticking.make_due(at=START + 5 * MINUTE)
    assert [calendar.ticks(schedule) for schedule in made] == [minutes(1, 5)] * 10
    assert calendar.value("select count(*) from taketurns.schedules where error is not null") == 0


async def test_a_quota_that_is_used_up_delays_a_tick_and_loses_none(
    calendar: Calendar, caplog: pytest.LogCaptureFixture
) -> None:
    made = await calendar.add(missed=Missed.ALL)
    calendar.execute("update taketurns.companies set hourly_quota = 1 where slug = 'acme'")
    await calendar.ticking.make_due(at=START + MINUTE)
    ticked = await calendar.ticking.make_due(at=START + 2 * MINUTE)
    assert (ticked.made, ticked.failed) == (0, 1)
    assert calendar.value("select error from taketurns.schedules") == "a quota of the company is used up"
    assert (await calendar.ticking.make_due(at=START + 2 * MINUTE)).failed == 1
    assert caplog.text.count("a quota of the company is used up") == 1  # though it is tried every second
    calendar.execute("update taketurns.companies set hourly_quota = 5")
    await calendar.ticking.make_due(at=START + 3 * MINUTE)
    assert calendar.ticks(made) == minutes(1, 3)
    assert calendar.value("select reserved from taketurns.quota_usage where period = 'hour'") == 3


async def test_many_who_make_ticks_at_once_make_each_once(calendar: Calendar) -> None:
    """Fault 126; more schedules than a batch holds."""
    made = [await calendar.add(f"number {number}") for number in range(105)]
    makers = [Ticking(calendar.database, announce=lambda queues: None) for _ in range(3)]
    ticked = await asyncio.gather(*(maker.make_due(at=START + MINUTE) for maker in makers))
    assert sum(one.made for one in ticked) == 105
    assert [calendar.ticks(schedule) for schedule in made] == [minutes(1, 1)] * 105


async def test_a_schedule_that_is_changed_between_look_and_tick_ticks_as_it_is_now(calendar: Calendar) -> None:
    made = await calendar.add()

    class Slow(Ticking):
        async def _make(self, *arguments: object, **options: object) -> None:
            await calendar.change(made, paused=True)
            await super()._make(*arguments, **options)  # type: ignore[arg-type]

    ticked = await Slow(calendar.database, announce=lambda queues: None).make_due(at=START + MINUTE)
    assert (ticked.made, calendar.ticks(made)) == (0, [])
    assert (await calendar.schedule(made.id)).next_tick_at is None


async def test_a_company_is_deleted_while_its_schedules_tick(calendar: Calendar) -> None:
    for number in range(20):
        await calendar.add(f"number {number}")
    results = await asyncio.gather(
        *(calendar.ticking.make_due(at=START + MINUTE) for _ in range(3)),
        directory.delete(calendar.database, "acme"),
        return_exceptions=True,
    )
    assert not [one for one in results[:3] if isinstance(one, Exception)]
    if results[3] is True:
        assert calendar.value("select count(*) from taketurns.schedules") == 0


async def test_a_pass_makes_the_ticks_that_are_due_and_runs_their_tasks(calendar: Calendar) -> None:
    ran: list[int] = []

    async def work(number: int) -> None:
        ran.append(number)

    registry = Registry()
    registry.add(work)
    broker = PostgresBroker(calendar.database)
    await calendar.add(payload={"number": 7})
    calendar.execute("update taketurns.schedules set next_tick_at = date_trunc('minute', clock_timestamp())")
    report = await run_pass(
        broker=broker, registry=registry, ticking=Ticking(calendar.database, announce=broker.notifier.announce)
    )
    await broker.notifier.flush()
    assert (report.completed, ran) == (1, [7])


WALL = """
create schema wall;
create table wall.clock (now timestamptz not null);
create table wall.makers (pid integer not null)
"""


class Wall:
    """A clock that processes go by, and those processes."""

    def __init__(self, calendar: Calendar) -> None:
        self.calendar = calendar
        calendar.execute(WALL)
        calendar.execute("insert into wall.clock values (%s)", START)

    def set(self, now: datetime) -> None:
        self.calendar.execute("update wall.clock set now = %s", now)

    @contextlib.contextmanager
    def makers(self, count: int) -> Iterator[list[BaseProcess]]:
        """Processes that make ticks; killed on leaving."""
        before = len(self.calendar.execute("select 1 from wall.makers"))
        processes = [forks.start(make_ticks, self.calendar.url) for _ in range(count)]
        try:
            soon(lambda: len(self.calendar.execute("select 1 from wall.makers")) == before + count, within=150)
            yield processes
        finally:
            for process in processes:
                forks.end(process)

    def is_made(self, count: int) -> bool:
        return int(self.calendar.value("select count(*) from taketurns.tasks")) >= count


@pytest.mark.timeout(300)
async def test_one_of_three_processes_stops_for_a_while_and_every_tick_makes_one_task(calendar: Calendar) -> None:
    """Fault 126."""
    made = [await calendar.add(f"number {number}", missed=Missed.ALL) for number in range(5)]
    wall = Wall(calendar)
    with wall.makers(3) as (first, *_):
        for number in range(1, 13):
            if number == 4:
                os.kill(int(first.pid or 0), signal.SIGSTOP)
            if number == 9:
                os.kill(int(first.pid or 0), signal.SIGCONT)
            wall.set(START + number * MINUTE)
            await eventually(lambda count=5 * number: wall.is_made(count))  # type: ignore[misc]
    assert [calendar.ticks(schedule) for schedule in made] == [minutes(1, 12)] * 5


@pytest.mark.timeout(300)
async def test_whoever_dies_around_a_tick_it_is_made_once(calendar: Calendar) -> None:
    """Fault 127: connections cut at any moment, and processes killed."""
    made = [await calendar.add(f"number {number}", missed=Missed.ALL) for number in range(30)]
    wall = Wall(calendar)
    maker = Database(calendar.url, pool_size=2, pool_timeout=0.5, name="ticking")
    await maker.open()
    ticking = Ticking(maker, announce=lambda queues: None)
    for number in range(1, 9):
        wall.set(now := START + number * MINUTE)
        if number % 4 == 0:
            with wall.makers(1) as (process,):
                process.kill()
        making = asyncio.create_task(ticking.make_due(at=now))
        for _ in range(5):
            await asyncio.sleep(random.uniform(0, 0.01))
            calendar.execute(
                "select pg_terminate_backend(pid) from pg_stat_activity where application_name = 'ticking'"
            )
        with contextlib.suppress(Unavailable):
            await making
    await maker.close()
    await calendar.ticking.make_due(at=START + 8 * MINUTE)
    assert [calendar.ticks(schedule) for schedule in made] == [minutes(1, 8)] * 30


# While a company is paused


@pytest.mark.parametrize(
    ("missed", "expected"),
    [(Missed.SKIP, minutes(10, 10)), (Missed.LAST, minutes(10, 10)), (Missed.ALL, minutes(1, 10))],
)
async def test_a_paused_companys_ticks_wait_and_are_made_up_for_as_missed_ones(
    calendar: Calendar, missed: Missed, expected: list[datetime]
) -> None:
    held, other = await calendar.add(missed=missed), await calendar.add(company="zeta")
    await directory.change(calendar.database, "acme", {"paused": True})
    for minute in range(1, 10):
        await calendar.ticking.make_due(at=START + minute * MINUTE)
    assert (calendar.ticks(held), calendar.ticks(other)) == ([], minutes(1, 9))
    assert (await calendar.schedule(held.id)).error == "the company is paused: its ticks wait until it goes on"
    await directory.change(calendar.database, "acme", {"paused": False})
    assert (await calendar.schedule(held.id)).error is None
    await calendar.ticking.make_due(at=START + 10 * MINUTE)
    assert calendar.ticks(held) == expected


async def test_nobody_looks_at_what_is_held_and_a_time_or_a_change_by_hand_lets_it_go_on(calendar: Calendar) -> None:
    held = await calendar.add()
    until = START + 2 * MINUTE
    calendar.execute("update taketurns.companies set paused = true, paused_until = %s where slug = 'acme'", until)
    ticked = await calendar.ticking.make_due(at=START + MINUTE)
    assert (ticked.made, ticked.failed, await calendar.ticking.next_due()) == (0, 0, None)
    calendar.execute("select taketurns.end_pauses(%s)", START + 2 * MINUTE)
    assert (await calendar.ticking.make_due(at=START + 2 * MINUTE)).made == 1
    calendar.execute("update taketurns.companies set paused = true")
    await calendar.ticking.make_due(at=START + 3 * MINUTE)
    calendar.execute("update taketurns.companies set paused = false")
    await PostgresBroker(calendar.database).heal()
    await calendar.ticking.make_due(at=START + 4 * MINUTE)
    assert calendar.ticks(held) == [*minutes(2, 2), *minutes(4, 4)]


async def test_a_tick_that_meets_the_end_of_a_pause_is_not_held(calendar: Calendar) -> None:
    made = await calendar.add()
    await directory.change(calendar.database, "acme", {"paused": True})
    with psycopg.connect(calendar.url) as going_on:
        going_on.execute("update taketurns.companies set paused = false where slug = 'acme'")
        ticking = asyncio.create_task(calendar.ticking.make_due(at=START + MINUTE))
        await eventually(lambda: bool(calendar.execute("select 1 from pg_locks where not granted")))
        going_on.execute("select taketurns.let_schedules_go_on()")
    await ticking
    assert calendar.ticks(made) == minutes(1, 1)
