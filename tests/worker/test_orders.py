"""Worker processes that an operator drains, resumes and stops from another process."""

import pytest

from taketurns.engine.orders import Wanted, WorkerState
from taketurns.engine.registry import Registry
from tests.waiting import eventually
from tests.worker.house import House, WorkerProcess


def state(house: House, worker: WorkerProcess) -> str:
    return str(house.value("select state from taketurns.workers where id = %s", worker.worker_id))


async def test_a_worker_that_is_told_to_stop_ends_well_and_loses_nothing(house: House) -> None:
    tasks = await house.add("gated", count=6, gate="go")
    with house.process(concurrency=2, batch=10) as worker:
        await eventually(lambda: house.runs_in_all() == 2)
        await house.broker.order(worker.worker_id, Wanted.STOP)
        await eventually(lambda: house.statuses(tasks) == {"processing": 2, "pending": 4})
        await eventually(lambda: state(house, worker) == WorkerState.STOPPING)
        assert not worker.has_ended()
        house.open_gate("go")
        assert worker.wait() == 0
        assert house.leases() == []
        assert house.statuses(tasks) == {"completed": 2, "pending": 4}
        with house.process():
            await eventually(lambda: house.are("completed", tasks))
    assert [len(house.runs(task)) for task in tasks] == [1] * 6
    assert {house.outcome(task)[3] for task in tasks} == {0}


async def test_a_drained_worker_takes_nothing_new_and_goes_on_once_it_is_resumed(house: House) -> None:
    with house.process(name="first") as first, house.process(name="second") as second:
        (begun,) = await house.add("gated", gate="go")
        await eventually(lambda: house.runs(begun))
        drained, other = (first, second) if house.runs(begun) == [first.pid] else (second, first)
        await house.broker.order(drained.worker_id, Wanted.DRAIN)
        await eventually(lambda: state(house, drained) == WorkerState.DRAINING)
        meanwhile = await house.add("note", count=60)
        await eventually(lambda: house.are("completed", meanwhile))
        assert {pid for task in meanwhile for pid in house.runs(task)} == {other.pid}
        house.open_gate("go")
        await eventually(lambda: house.status(begun) == "completed")
        assert house.runs(begun) == [drained.pid]
        await house.broker.order(drained.worker_id, Wanted.RUN)
        await eventually(lambda: state(house, drained) == WorkerState.RUNNING)
        await house.broker.order(other.worker_id, Wanted.STOP)
        assert other.wait() == 0
        afterwards = await house.add("note", count=20)
        await eventually(lambda: house.are("completed", afterwards))
        assert {pid for task in afterwards for pid in house.runs(task)} == {drained.pid}


async def test_an_order_is_obeyed_long_before_the_next_beat(house: House) -> None:
    with house.process(beat_seconds=60.0, stale_after_seconds=180.0) as worker:
        await eventually(lambda: house.sessions("taketurns-listen") == 1)
        await house.broker.order(worker.worker_id, Wanted.DRAIN)
        await eventually(lambda: state(house, worker) == WorkerState.DRAINING)
        await house.broker.order(worker.worker_id, Wanted.STOP)
        await eventually(worker.has_ended)
        assert worker.wait() == 0


async def test_a_worker_that_loses_its_lease_while_it_drains_goes_on_draining(house: House) -> None:
    with house.process() as worker:
        await house.broker.order(worker.worker_id, Wanted.DRAIN)
        await eventually(lambda: state(house, worker) == WorkerState.DRAINING)
        house.execute("delete from taketurns.workers")
        (worker.worker_id,) = await eventually(house.leases)
        await eventually(lambda: state(house, worker) == WorkerState.DRAINING)
        assert house.value("select wanted from taketurns.workers") == Wanted.DRAIN
        await house.broker.order(worker.worker_id, Wanted.RUN)
        (task,) = await house.add("note")
        await eventually(lambda: house.status(task) == "completed")


@pytest.mark.parametrize("wanted", [Wanted.DRAIN, Wanted.STOP])
async def test_a_worker_that_takes_no_turns_is_not_ready(house: House, wanted: Wanted) -> None:
    registry = Registry()
    async with house.working(registry, beat_seconds=0.1) as worker:
        await eventually(lambda: worker.is_ready)
        assert worker.lease.worker_id is not None
        await house.broker.order(worker.lease.worker_id, wanted)
        await eventually(lambda: not worker.is_ready)
