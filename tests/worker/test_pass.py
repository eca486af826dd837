"""One bounded pass, as `POST /workers/process` and `worker --once` make it."""

import asyncio
import uuid
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from taketurns.brokers.postgres import PostgresBroker
from taketurns.engine.errors import Fail, Retry, Unavailable
from taketurns.engine.registry import Registry
from taketurns.engine.task import NewTask, PassReport
from taketurns.storage.database import Database
from taketurns.storage.ids import id_at
from taketurns.worker import run_pass
from tests.waiting import PATIENCE, eventually
from tests.worker.house import House


@pytest.fixture
def registry() -> Registry:
    return Registry()


async def a_pass(house: House, registry: Registry, *, limit: int = 100, concurrency: int = 16) -> PassReport:
    return await run_pass(broker=house.broker, registry=registry, limit=limit, concurrency=concurrency)


async def test_a_pass_says_what_it_did(house: House, registry: Registry) -> None:
    async def work(how: str) -> None:
        match how:
            case "fail":
                raise Fail("for good")
            case "retry":
                raise Retry("later", after=60)

    registry.add(work)
    for how, count in (("well", 3), ("fail", 2), ("retry", 1)):
        await house.add("work", count=count, how=how)
    await house.add("of_another_release")
    report = await a_pass(house, registry)
    assert report == PassReport(claimed=7, completed=3, retried=1, failed=2, released=1)
    assert house.held() == 0
    assert house.leases() == []


async def test_a_pass_takes_no_more_than_its_limit(house: House, registry: Registry) -> None:
    async def work() -> None: ...

    registry.add(work)
    tasks = await house.add("work", count=30)
    assert await a_pass(house, registry, limit=10, concurrency=4) == PassReport(claimed=10, completed=10)
    assert house.statuses(tasks) == {"completed": 10, "pending": 20}


async def test_a_pass_waits_for_the_handlers_of_its_last_claim(house: House, registry: Registry) -> None:
    async def work() -> None:
        await asyncio.sleep(0.05)

    registry.add(work)
    await house.add("work", count=2)
    assert await a_pass(house, registry, limit=2) == PassReport(claimed=2, completed=2)


async def test_a_pass_goes_on_with_what_its_tasks_make_possible(house: House, registry: Registry) -> None:
    async def work() -> None: ...

    registry.add(work)
    house.add_company("small", max_in_flight=1)
    await house.add("work", company="small", count=5)
    assert (await a_pass(house, registry)).completed == 5


async def test_a_pass_takes_tasks_that_are_due(house: House, registry: Registry) -> None:
    async def work() -> None: ...

    registry.add(work)
    await house.add_tasks([NewTask(type="work", payload="{}", delay_seconds=60)])
    house.execute("update taketurns.scheduled_tasks set run_after = clock_timestamp()")
    assert (await a_pass(house, registry)).completed == 1


async def test_a_pass_with_nothing_to_do_ends(house: House, registry: Registry) -> None:
    assert await a_pass(house, registry) == PassReport()


async def test_a_pass_without_a_database_is_refused(
    house: House, registry: Registry, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("taketurns.worker.worker.PASS_LEASE_SECONDS", 0.2)
    nowhere = PostgresBroker(Database("postgresql://nobody@127.0.0.1:1/none"))
    with pytest.raises(Unavailable, match="lease"):
        await run_pass(broker=nowhere, registry=registry)


async def test_a_pass_that_is_cancelled_releases_what_it_holds(house: House, registry: Registry) -> None:
    begun = asyncio.Event()

    async def work() -> None:
        begun.set()
        await asyncio.Event().wait()

    registry.add(work)
    (task,) = await house.add("work")
    passing = asyncio.create_task(a_pass(house, registry))
    await eventually(begun.is_set)
    passing.cancel()
    with pytest.raises(asyncio.CancelledError):
        await passing
    assert house.status(task) == "pending"
    assert house.leases() == []


async def test_a_pass_claims_again_as_soon_as_a_hand_is_free(house: House, registry: Registry) -> None:
    others_ran, ran = asyncio.Event(), 0

    async def work(waits: bool) -> None:
        nonlocal ran
        if waits:
            await others_ran.wait()
        elif (ran := ran + 1) == 6:
            others_ran.set()

    registry.add(work)
    await house.add("work", waits=True)
    await house.add("work", count=6, waits=False)
    async with asyncio.timeout(PATIENCE):
        assert (await a_pass(house, registry, concurrency=2)).completed == 7


# Fault 078
async def test_a_row_that_cannot_be_read_fails_and_the_pass_goes_on(house: House, registry: Registry) -> None:
    async def work() -> None: ...

    registry.add(work)
    bad, *good = await house.add("work", count=5)
    house.execute("alter table taketurns.tasks drop constraint tasks_times_are_readable_check")
    house.execute("update taketurns.tasks set created_at = '-infinity' where id = %s", bad)
    await a_pass(house, registry)
    assert house.are("completed", good)
    assert house.status(bad) in {"failed", "completed"}


class Stuck:
    """A broker whose claims move tasks and never answer."""

    def __init__(self, broker: Any) -> None:
        self._broker = broker
        self.has_claimed = asyncio.Event()

    async def claim(self, *given: Any, **named: Any) -> Any:
        await self._broker.claim(*given, **named)
        self.has_claimed.set()
        await asyncio.Event().wait()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._broker, name)


async def test_a_pass_that_is_cancelled_in_mid_claim_releases_what_was_claimed(
    house: House, registry: Registry
) -> None:
    tasks = await house.add("work", count=3)
    broker = Stuck(house.broker)
    passing = asyncio.create_task(run_pass(broker=broker, registry=registry))
    await eventually(broker.has_claimed.is_set)
    passing.cancel()
    with pytest.raises(asyncio.CancelledError):
        await passing
    assert house.are("pending", tasks)
    assert [house.events(task) for task in tasks] == [["released"]] * 3


# Faults 057, 062 and 075
async def test_passes_alone_take_over_from_a_worker_that_is_gone(house: House, registry: Registry) -> None:
    async def work() -> None: ...

    registry.add(work)
    tasks = await house.add("work", count=4)
    gone = uuid.uuid4()
    house.execute(
        "insert into taketurns.workers (id, name, host, version, queues, types, concurrency, started_at, beat_at)"
        " values (%s, '', '', '', '{}', '{}', 4, clock_timestamp(), clock_timestamp() - interval '1 hour')",
        gone,
    )
    assert len(await house.broker.claim(gone, queues=["default"], batch=4)) == 4
    report = await run_pass(broker=house.broker, registry=registry, beat_seconds=0.1, stale_after_seconds=0.6)
    assert report == PassReport(claimed=4, completed=4)
    assert [house.events(task) for task in tasks] == [["rescued"]] * 4
    assert house.leases() == []


async def test_a_pass_holds_nothing_against_a_worker_that_could_not_beat(house: House, registry: Registry) -> None:
    """After an outage of the database, or a leap of its clock, every lease looks dead."""
    begun, gate = asyncio.Event(), asyncio.Event()

    async def work() -> None:
        begun.set()
        await gate.wait()

    registry.add(work)
    (task,) = await house.add("work")
    async with house.working(registry, beat_seconds=0.3, stale_after_seconds=3):
        await eventually(begun.is_set)
        house.execute("update taketurns.workers set beat_at = beat_at - interval '1 hour'")
        await run_pass(broker=house.broker, registry=Registry(), beat_seconds=0.3, stale_after_seconds=3)
        assert house.status(task) == "processing"
        gate.set()
        await eventually(lambda: house.status(task) == "completed")
    assert house.events(task) == []


async def test_a_drain_goes_on_with_what_has_become_due(house: House, registry: Registry) -> None:
    times = 0

    async def work() -> None:
        nonlocal times
        times += 1
        if times < 4:
            raise Retry("again", after=0)

    registry.add(work)
    (task,) = await house.add("work")
    report = await run_pass(broker=house.broker, registry=registry, limit=None, drains=True)
    assert (report.claimed, report.completed, report.retried) == (4, 1, 3)
    assert house.status(task) == "completed"


async def test_a_pass_keeps_the_house(house: House, registry: Registry) -> None:
    async def work() -> None: ...

    registry.add(work)
    long_ago = datetime.now(UTC) - timedelta(days=8)
    (old,) = await house.add_tasks([NewTask(type="work", payload="{}", task_id=id_at(long_ago))])
    await run_pass(broker=house.broker, registry=registry, keeps_house=False)
    house.execute("update taketurns.tasks set finished_at = finished_at - interval '8 days'")
    (lost,) = await house.add("work")
    house.execute("delete from taketurns.turns")
    house.execute("delete from taketurns.lines")
    await a_pass(house, registry)
    assert house.status(lost) == "completed"
    assert house.statuses([old]) == {}


async def test_a_pass_that_is_told_to_stop_ends_what_runs_and_starts_nothing(house: House, registry: Registry) -> None:
    begun, gate = asyncio.Event(), asyncio.Event()

    async def work() -> None:
        begun.set()
        await gate.wait()

    registry.add(work)
    tasks = await house.add("work", count=5)
    worker = house.worker(registry, concurrency=1, batch=3)
    passing = asyncio.create_task(worker.run_pass())
    await eventually(begun.is_set)
    worker.stop()
    await eventually(lambda: house.statuses(tasks) == {"processing": 1, "pending": 4})
    gate.set()
    report = await passing
    assert (report.completed, report.released) == (1, 2)
    assert house.leases() == []
