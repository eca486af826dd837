"""The lease of a worker in this process: lost, it stops what runs, and is taken anew."""

import asyncio
import threading

import pytest

from taketurns.engine.errors import ConfigurationError
from taketurns.engine.registry import Registry
from taketurns.execution import Context
from taketurns.worker import lease as leases
from tests.waiting import eventually
from tests.worker.house import House


@pytest.fixture
def registry() -> Registry:
    return Registry()


async def test_a_lease_is_beaten(house: House, registry: Registry) -> None:
    async with house.working(registry, beat_seconds=0.02):
        await eventually(lambda: house.value("select beat from taketurns.workers") > 5)


async def test_stale_after_must_leave_room_for_late_beats(house: House, registry: Registry) -> None:
    with pytest.raises(ConfigurationError, match="three times"):
        house.worker(registry, beat_seconds=3, stale_after_seconds=8)


async def test_the_last_claim_is_told(house: House, registry: Registry) -> None:
    async def work() -> None: ...

    registry.add(work)
    async with house.working(registry, beat_seconds=0.02):
        await house.add("work")
        await eventually(lambda: house.value("select last_claim_at > started_at from taketurns.workers"))


# The row is gone: others have taken the work.
async def test_a_lost_lease_cancels_what_runs_and_is_taken_anew(house: House, registry: Registry) -> None:
    begun, cancelled = [], asyncio.Event()

    async def work(ctx: Context) -> None:
        begun.append(ctx.task_id)
        if len(begun) > 1:
            return
        try:
            await asyncio.Event().wait()
        finally:
            cancelled.set()

    registry.add(work, context_type=Context)
    (task,) = await house.add("work")
    async with house.working(registry) as worker:
        await eventually(lambda: begun)
        former = worker.lease.worker_id
        house.execute("delete from taketurns.workers")
        await eventually(cancelled.is_set)
        await eventually(lambda: house.status(task) == "completed")
        assert worker.lease.worker_id != former
        assert house.leases() == [worker.lease.worker_id]
    assert begun == [task, task]
    assert house.events(task) == ["released"]


async def test_a_database_that_is_away_for_too_long_costs_the_lease_and_no_task(
    house: House, registry: Registry
) -> None:
    begun = []

    async def work(ctx: Context) -> None:
        begun.append(ctx.task_id)
        if len(begun) == 1:
            await asyncio.Event().wait()

    registry.add(work, context_type=Context)
    (task,) = await house.add("work")
    async with house.working(registry) as worker:
        await eventually(lambda: begun)
        with house.closed():
            for application in ("house", "taketurns-lease", "taketurns-listen"):
                house.terminate(application)
            await eventually(lambda: worker.held == 0)
            assert not worker.lease.is_held
        await eventually(lambda: house.status(task) == "completed")
    assert begun == [task, task]


async def test_a_short_outage_costs_nothing(house: House, registry: Registry) -> None:
    gate, begun = asyncio.Event(), []

    async def work(ctx: Context) -> None:
        begun.append(ctx.task_id)
        await gate.wait()

    registry.add(work, context_type=Context)
    (task,) = await house.add("work")
    async with house.working(registry, stale_after_seconds=30) as worker:
        await eventually(lambda: begun)
        former = worker.lease.worker_id
        with house.closed():
            assert house.terminate("taketurns-lease") == 1
            gate.set()
            await eventually(lambda: worker.held == 0)
        await eventually(lambda: house.status(task) == "completed")
        beat = house.value("select beat from taketurns.workers")
        await eventually(lambda: house.value("select beat from taketurns.workers") > beat)
        assert worker.lease.worker_id == former
    assert begun == [task]


async def test_a_process_whose_threads_outlive_its_lease_is_ended(house: House, registry: Registry) -> None:
    gate, ended = threading.Event(), threading.Event()
    codes = []

    def end(code: int) -> None:
        codes.append(code)
        ended.set()

    def work() -> None:
        gate.wait(20)

    registry.add(work)
    await house.add("work")
    async with house.working(registry, end_process=end) as worker:
        await eventually(lambda: worker.hands.running)
        house.execute("delete from taketurns.workers")
        await eventually(ended.is_set)
        gate.set()
    assert codes == [leases.EXIT_CODE]


async def test_handlers_that_stop_in_time_save_their_process(house: House, registry: Registry) -> None:
    codes: list[int] = []
    begun: list[Context] = []

    def work(ctx: Context) -> None:
        begun.append(ctx)
        if len(begun) == 1:
            assert ctx.cancelled.wait(20)
            raise RuntimeError("stopped")

    registry.add(work, context_type=Context)
    (task,) = await house.add("work")
    async with house.working(registry, end_process=codes.append):
        await eventually(lambda: begun)
        house.execute("delete from taketurns.workers")
        await eventually(lambda: house.status(task) == "completed")
    assert codes == []


# Fault 053: within one process, too, the latest claim's report is the one that counts.
async def test_the_report_of_a_former_claim_changes_nothing_though_the_worker_is_the_same(
    house: House, registry: Registry
) -> None:
    gates = [asyncio.Event(), asyncio.Event()]
    begun = []

    async def work(ctx: Context) -> int:
        begun.append(ctx.task_id)
        number = len(begun)
        while not gates[number - 1].is_set():
            try:
                await gates[number - 1].wait()
            except asyncio.CancelledError:
                continue
        return number

    registry.add(work, context_type=Context)
    (task,) = await house.add("work")
    async with house.working(registry, concurrency=2) as worker:
        await eventually(lambda: len(begun) == 1)
        await house.broker.cancel("acme", task)
        await house.broker.retry("acme", task)
        await eventually(lambda: len(begun) == 2)
        gates[0].set()
        await eventually(lambda: worker.held == 1)
        await worker.settler.flush()
        assert house.status(task) == "processing"
        assert worker.settler.tally.lost == 1
        gates[1].set()
        await eventually(lambda: house.status(task) == "completed")
    assert house.outcome(task)[1] == 2
