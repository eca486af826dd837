"""Worker processes: killed, stopped, told to leave, cut off; what they held is done all the same."""

import signal
import uuid
from functools import partial

import pytest

from taketurns.engine.registry import Registry
from taketurns.engine.task import NewTask
from taketurns.worker import lease, process
from tests.waiting import PATIENCE, eventually
from tests.worker.house import House

STOPPED = 128 + signal.SIGTERM


# Faults 057 and 123
async def test_what_a_killed_worker_held_is_run_by_another(house: House) -> None:
    tasks = await house.add("gated", count=4, gate="go") + await house.add("gated_sync", count=2, gate="go")
    with house.process() as first:
        await eventually(lambda: all(house.runs(task) for task in tasks))
        first.send(signal.SIGKILL)
        first.wait()
        house.open_gate("go")
        with house.process() as second:
            await eventually(lambda: house.are("completed", tasks))
            assert [house.runs(task) for task in tasks] == [[first.pid, second.pid]] * 6
    assert [house.events(task) for task in tasks] == [["rescued"]] * 6
    assert [house.outcome(task)[3] for task in tasks] == [0] * 6


# Fault 060: the row of a dead worker's lease may be gone before anybody looked.
async def test_tasks_without_any_lease_are_rescued(house: House) -> None:
    tasks = await house.add("gated", count=3, gate="go")
    with house.process() as first:
        await eventually(lambda: all(house.runs(task) for task in tasks))
        first.send(signal.SIGKILL)
        first.wait()
        house.execute("delete from taketurns.workers")
        house.open_gate("go")
        with house.process():
            await eventually(lambda: house.are("completed", tasks))


# Fault 052
@pytest.mark.parametrize("fails", [False, True])
async def test_a_worker_that_was_stopped_for_too_long_changes_nothing_when_it_goes_on(
    house: House, fails: bool
) -> None:
    (task,) = await house.add("gated", gate="go", fails=False)
    with house.process() as first:
        await eventually(lambda: house.runs(task))
        first.send(signal.SIGSTOP)
        with house.process() as second:
            await eventually(lambda: house.runs(task) == [first.pid, second.pid])
            if fails:
                house.execute("update taketurns.tasks set payload = payload::jsonb || '{\"fails\": true}'")
            first.send(signal.SIGCONT)
            await eventually(lambda: "lease lost" in first.log())
            await eventually(lambda: first.worker_id not in house.leases())
            assert house.status(task) == "processing"
            house.open_gate("go")
            await eventually(lambda: house.status(task) == "completed")
            assert house.outcome(task)[1] == second.pid
            # With nothing under way any more, the first takes a new lease, and turns.
            others = await house.add("note", count=20)
            await eventually(lambda: house.are("completed", others))
            await eventually(lambda: len(house.leases()) == 2)
    assert house.events(task) == ["rescued"]
    assert len(house.runs(task)) == 2


# Fault 114
async def test_a_handler_that_blocks_the_event_loop_costs_no_lease(house: House) -> None:
    others = await house.add("gated", count=3, gate="go")
    with house.process():
        await eventually(lambda: all(house.runs(task) for task in others))
        (blocking,) = await house.add("block", seconds=4.0)
        await eventually(lambda: house.runs(blocking))
        house.open_gate("go")
        with house.process():
            await eventually(lambda: house.are("completed", [blocking, *others]))
    assert [house.runs(task) for task in [blocking, *others]] == [[house.runs(blocking)[0]]] * 4


# Fault 092. Workers are slow to come: whatever is to wait for a while has waited when they are there.
async def test_tasks_that_kill_their_workers_fail_after_their_rescues_and_those_beside_them_are_done(
    house: House,
) -> None:
    pills = await house.add_tasks(
        [NewTask(type=type, payload="{}", queue="pharmacy", priority=0) for type in ("die", "leave")]
    )
    beside = await house.add_tasks([NewTask(type="note", payload="{}", queue="pharmacy")] * 20)
    async with house.working(Registry(), queues=["nothing"], max_rescues=2):
        for failed in (0, 0, 0, 1):
            await eventually(lambda: house.statuses([*pills, *beside])["pending"] == 22 - failed)  # noqa: B023
            with house.process(waits=False, queues=["pharmacy"], batch=100, max_rescues=2) as victim:
                victim.wait()
        await eventually(lambda: house.are("failed", pills))
        with house.process(queues=["pharmacy"]):
            await eventually(lambda: house.are("completed", beside))
    assert {house.outcome(pill)[2] for pill in pills} == {
        "worker lost: the worker was lost at least 3 times while it ran this task"
    }
    assert sorted(len(house.events(pill)) for pill in pills) == [2, 3]
    assert all(house.events(task)[:3] == ["rescued", "rescued", "deferred"] for task in beside)


# Faults 100 and 105: exactly one end for every task, whenever the workers were told to leave.
async def test_workers_that_come_and_go_under_load_lose_nothing_and_repeat_nothing(house: House) -> None:
    tasks = await house.add("note", count=150) + await house.add("note", company="zeta", count=50)
    for _ in range(4):
        with house.process(concurrency=4, batch=100) as worker:
            await eventually(partial(house.has_run, more_than=10 + house.runs_in_all()))
            worker.send(signal.SIGTERM)
            assert worker.wait() == 0
        assert house.held() == 0
        assert house.leases() == []
        ran, ended = house.execute(
            "select (select count(*) from witness.runs),"
            " (select count(*) from taketurns.tasks where finished_at is not null)"
        )[0]
        assert ran == ended
    with house.process():
        await eventually(lambda: house.are("completed", tasks))
    assert house.value("select count(*) from (select task_id from witness.runs group by 1 having count(*) > 1) r") == 0


async def test_the_first_signal_waits_for_running_handlers(house: House) -> None:
    (task,) = await house.add("gated", gate="go")
    with house.process() as worker:
        await eventually(lambda: house.runs(task))
        worker.send(signal.SIGINT)
        await eventually(lambda: "worker stopping" in worker.log())
        assert not worker.has_ended()
        house.open_gate("go")
        assert worker.wait() == 0
    assert house.status(task) == "completed"


@pytest.mark.parametrize("type", ["gated", "gated_sync", "block"])
async def test_the_second_signal_leaves_at_once(house: House, type: str) -> None:
    payload = {"seconds": 30.0} if type == "block" else {"gate": "never"}
    (task,) = await house.add(type, **payload)
    with house.process(stale_after_seconds=PATIENCE) as worker:
        await eventually(lambda: house.runs(task))
        await eventually(lambda: worker.has_ended_after(signal.SIGTERM))  # two at once may come as one
        assert worker.wait() == STOPPED
    assert house.status(task) == "processing"
    assert house.leases() == [worker.worker_id]


# Fault 103
async def test_handlers_that_do_not_end_keep_no_process_past_its_grace(house: House) -> None:
    tasks = await house.add("stubborn", gate="never") + await house.add("gated_sync", gate="never")
    with house.process(shutdown_grace_seconds=0.1) as worker:
        await eventually(lambda: all(house.runs(task) for task in tasks))
        worker.send(signal.SIGTERM)
        assert worker.wait() == process.LEFT_HANDLERS
        assert "handlers that do not end" in worker.log()
    assert house.are("pending", tasks)
    assert [house.events(task) for task in tasks] == [["released"]] * 2
    assert house.leases() == []


async def test_handlers_left_behind_after_their_timeout_keep_no_process(house: House) -> None:
    (task,) = await house.add_tasks(
        [NewTask(type="stubborn", payload='{"gate": "never"}', timeout_seconds=0.1, max_retries=0)]
    )
    with house.process() as worker:
        await eventually(lambda: house.status(task) == "failed")
        assert "does not stop" in str(house.outcome(task)[2])
        worker.send(signal.SIGTERM)
        assert worker.wait() == process.LEFT_HANDLERS


async def test_a_lease_lost_while_threads_run_ends_the_process(house: House) -> None:
    (task,) = await house.add("gated_sync", gate="never")
    with house.process() as worker:
        await eventually(lambda: house.runs(task))
        house.execute("delete from taketurns.workers")
        assert worker.wait() == lease.EXIT_CODE


async def test_a_process_that_is_cut_off_ends_before_others_take_its_work(house: House) -> None:
    (task,) = await house.add("sleep", seconds=60)
    with house.process() as worker:
        await eventually(lambda: house.runs(task))
        with house.closed():
            for application in ("taketurns-lease", "taketurns-listen"):
                house.terminate(application)
            assert worker.wait() == lease.EXIT_CODE
    assert house.status(task) == "processing"


# Fault 107
async def test_handlers_may_start_processes_of_their_own(house: House) -> None:
    (task,) = await house.add("with_a_child")
    with house.process():
        await eventually(lambda: house.status(task) == "completed")
    assert house.outcome(task)[1] == 42


# Fault 110
async def test_a_process_goes_on_after_every_session_of_it_was_cut(house: House) -> None:
    with house.process():
        for _ in range(3):
            tasks = await house.add("note", count=20)
            for application in ("taketurns", "taketurns-listen", "taketurns-lease"):
                house.terminate(application)
            await eventually(partial(house.are, "completed", tasks))
            await eventually(lambda: house.sessions("taketurns-listen") == 1)


# Fault 172: what a worker needs of connections is known, and does not grow.
async def test_a_process_holds_few_connections(house: House) -> None:
    most = 0
    with house.process():
        tasks = await house.add("note", count=200)
        await eventually(lambda: house.are("completed", tasks))
        most = sum(house.sessions(f"taketurns{part}") for part in ("", "-listen", "-lease"))
    assert most <= 4 + 2


async def test_a_new_lease_has_a_new_id(house: House) -> None:
    with house.process() as worker:
        house.execute("delete from taketurns.workers")
        (worker_id,) = await eventually(house.leases)
        assert isinstance(worker_id, uuid.UUID)
        assert worker_id != worker.worker_id
