"""One worker in this process: what it does with the tasks of its companies."""

import asyncio
import gc
import threading
from collections.abc import Iterator, Sequence
from datetime import datetime
from functools import partial
from typing import Any
from uuid import UUID, uuid4

import pytest

from taketurns.companies import directory, pauses
from taketurns.engine.errors import Fail, Unavailable
from taketurns.engine.rate import Rate
from taketurns.engine.registry import Registry
from taketurns.engine.retry import Backoff
from taketurns.engine.task import ClaimedTask, NewTask, Outcome, Report
from taketurns.execution import Context, Executor
from taketurns.history.rollups import Attempts
from taketurns.telemetry import SeriesByType
from taketurns.worker import Worker
from taketurns.worker.hands import Hands
from taketurns.worker.settling import Settler
from tests.waiting import PATIENCE, eventually
from tests.worker.house import House

AT_ONCE = Backoff(first_seconds=0.02, ceiling_seconds=0.05)


@pytest.fixture
def registry() -> Registry:
    return Registry()


async def test_tasks_of_all_companies_complete(house: House, registry: Registry) -> None:
    async def double(number: int) -> int:
        return 2 * number

    registry.add(double)
    tasks = await house.add("double", count=30, number=4) + await house.add("double", company="zeta", number=5)
    async with house.working(registry):
        await eventually(lambda: house.are("completed", tasks))
    assert house.outcome(tasks[0])[1] == 8
    assert house.outcome(tasks[-1])[1] == 10
    assert house.leases() == []


async def test_a_wake_up_is_quicker_than_the_poll(house: House, registry: Registry) -> None:
    ran = asyncio.Event()

    async def work() -> None:
        ran.set()

    registry.add(work)
    async with house.working(registry, poll_seconds=60) as worker:
        await worker.listening.is_listening.wait()
        await eventually(lambda: not worker.claiming.has_prospects)
        await house.add("work")
        async with asyncio.timeout(PATIENCE):
            await ran.wait()


async def test_work_of_other_queues_is_left_alone(house: House, registry: Registry) -> None:
    async def work() -> None: ...

    registry.add(work)
    (mail,) = await house.add_tasks([NewTask(type="work", payload="{}", queue="mail")])
    (mine,) = await house.add("work")
    async with house.working(registry):
        await eventually(lambda: house.status(mine) == "completed")
        assert house.status(mail) == "pending"
    async with house.working(registry, queues=["mail"]):
        await eventually(lambda: house.status(mail) == "completed")


async def test_no_more_handlers_run_than_there_are_hands(house: House, registry: Registry) -> None:
    """Fault 049."""
    running, most = 0, 0

    async def work() -> None:
        nonlocal running, most
        running += 1
        most = max(most, running)
        await asyncio.sleep(0.001)
        running -= 1

    registry.add(work)
    tasks = await house.add("work", count=60)
    async with house.working(registry, concurrency=3, batch=20):
        await eventually(lambda: house.are("completed", tasks))
    assert most == 3


async def test_a_failed_attempt_is_tried_again_until_its_retries_are_used_up(house: House, registry: Registry) -> None:
    async def work() -> None:
        raise ValueError("no luck")

    registry.add(work, backoff=AT_ONCE)
    (task,) = await house.add_tasks([NewTask(type="work", payload="{}", max_retries=2)])
    async with house.working(registry):
        await eventually(lambda: house.status(task) == "failed")
    status, _, error, retries = house.outcome(task)
    assert (status, str(error).splitlines()[0], retries) == ("failed", "ValueError: no luck", 2)
    assert house.events(task) == ["retried", "retried"]


async def test_a_task_that_becomes_due_runs(house: House, registry: Registry) -> None:
    async def work() -> None: ...

    registry.add(work)
    (task,) = await house.add_tasks([NewTask(type="work", payload="{}", delay_seconds=0.3)])
    async with house.working(registry):
        await eventually(lambda: house.status(task) == "completed")
    ran_early = house.value("select started_at < run_after from taketurns.tasks where id = %s", task)
    assert ran_early is False


async def test_one_suspect_is_in_hand_and_others_are_put_off_before_it_begins(house: House, registry: Registry) -> None:
    """Fault 092."""
    held: list[dict[str, int]] = []
    suspects: list[UUID] = []
    go_on = asyncio.Event()

    async def work(ctx: Context) -> None:
        if ctx.task_id in suspects:
            held.append(dict(house.statuses(suspects)))
            await go_on.wait()

    registry.add(work, context_type=Context)
    suspects += await house.add("work", count=3)
    house.execute("update taketurns.pending_tasks set rescue_count = 2")
    ordinary = await house.add("work", count=10)
    async with house.working(registry, concurrency=4, poll_seconds=0.05):
        await eventually(lambda: house.are("completed", ordinary))
        await eventually(lambda: house.value("select count(*) from taketurns.task_events where kind = 'deferred'") > 3)
        go_on.set()
        await eventually(lambda: house.are("completed", suspects))
    assert held[0] == {"processing": 1, "scheduled": 2}
    assert [statuses["processing"] for statuses in held] == [1, 1, 1]


async def test_a_company_at_its_limit_goes_on_as_soon_as_a_task_of_it_ends(house: House, registry: Registry) -> None:
    async def work() -> None: ...

    registry.add(work)
    house.add_company("small", max_in_flight=1)
    tasks = await house.add("work", company="small", count=20)
    async with house.working(registry, poll_seconds=60):
        await eventually(lambda: house.are("completed", tasks))


@pytest.mark.parametrize(
    ("before", "change"),
    [
        ({"max_in_flight": 1}, {"max_in_flight": 2}),
        ({"max_in_flight": 1}, {"max_in_flight": None}),
        ({"paused": True}, {"paused": False}),
        ({"rate": Rate(1, 3600, 1)}, {"rate": Rate(1, 3600, 2)}),
        ({"rate": Rate(1, 3600, 1)}, {"rate": None}),
    ],
)
async def test_a_company_that_is_given_room_goes_on_at_once(
    house: House, registry: Registry, before: dict[str, Any], change: dict[str, Any]
) -> None:
    both = asyncio.Barrier(2)

    async def meet() -> None:
        await both.wait()

    registry.add(meet)
    await directory.change(house.database, "acme", before)
    tasks = await house.add("meet", count=2)
    async with house.working(registry, poll_seconds=60) as worker:
        await worker.listening.is_listening.wait()
        await eventually(lambda: not worker.claiming.has_prospects)
        await directory.change(house.database, "acme", change)
        await eventually(lambda: house.are("completed", tasks))


async def test_a_company_starts_as_fast_as_its_rate_allows_without_a_poll(house: House, registry: Registry) -> None:
    async def work() -> None: ...

    registry.add(work)
    await directory.change(house.database, "acme", {"rate": Rate(20, 1, 1)})
    tasks = await house.add("work", count=11)
    async with house.working(registry, poll_seconds=60):
        await eventually(lambda: house.are("completed", tasks))
    assert house.value("select max(started_at) - min(started_at) >= interval '0.5 s' from taketurns.tasks")


async def test_a_queue_that_is_resumed_goes_on_at_once(house: House, registry: Registry) -> None:
    async def work() -> None: ...

    registry.add(work)
    await pauses.put(house.database, None, queue="default", type=None)
    tasks = await house.add("work", count=2)
    async with house.working(registry, poll_seconds=60) as worker:
        await worker.listening.is_listening.wait()
        await eventually(lambda: not worker.claiming.has_prospects)
        assert house.are("pending", tasks)
        await pauses.lift(house.database, None, queue="default", type=None)
        await eventually(lambda: house.are("completed", tasks))


async def test_pauses_that_are_over_let_tasks_go_on(house: House, registry: Registry) -> None:
    async def work() -> None: ...

    async def mail() -> None: ...

    registry.add(work)
    registry.add(mail)
    until = house.value("select clock_timestamp() + interval '2 s'")
    await directory.change(house.database, "acme", {"paused_until": until})
    await pauses.put(house.database, None, queue=None, type="mail", until=until)
    tasks = [*await house.add("work"), *await house.add("mail", company="zeta")]
    async with house.working(registry, poll_seconds=60, duties=[pauses.EndPauses(house.database)]):
        await eventually(lambda: house.are("completed", tasks))
    assert house.value("select min(started_at) >= %s from taketurns.tasks", until)


# Fault 091: what could not be stored, or read again, ends as a failure that can be read, and others go on.
@pytest.mark.parametrize("result", ["a\x00b", float("nan"), 10**5_000], ids=["NUL", "NaN", "too many digits"])
async def test_a_result_that_cannot_be_stored_fails_readably(house: House, registry: Registry, result: object) -> None:
    async def odd() -> object:
        return {"out": result}

    async def work() -> None: ...

    registry.add(odd, backoff=AT_ONCE)
    registry.add(work)
    (bad,) = await house.add_tasks([NewTask(type="odd", payload="{}", max_retries=1)])
    good = await house.add("work", count=5)
    async with house.working(registry):
        await eventually(lambda: house.status(bad) == "failed" and house.are("completed", good))
    assert str(house.outcome(bad)[2]).startswith(("the result holds", "the result could not be read again"))


# Fault 091: the net under it.
async def test_a_report_that_the_database_refuses_is_a_failed_attempt_and_holds_up_no_other(house: House) -> None:
    tasks = await house.add("work", count=3)
    claimed = await house.broker.claim(uuid4(), queues=["default"], batch=3)
    settler = Settler(house.broker, SeriesByType(["work"], outcomes=[outcome.value for outcome in Outcome]))
    for task, result in zip(claimed, ("{}", "{", "{}"), strict=True):
        settler.report(Report(task, Outcome.COMPLETED, result=result), seconds=0)
    settler.close()
    await settler.run()
    assert [house.status(task) for task in tasks] == ["completed", "scheduled", "completed"]
    assert (settler.tally.completed, settler.tally.retried) == (2, 1)


async def test_no_more_is_claimed_until_half_of_what_waits_in_hand_has_begun(house: House, registry: Registry) -> None:
    gate = asyncio.Semaphore(0)

    async def work() -> None:
        await gate.acquire()

    registry.add(work)
    await house.add("work", count=6)
    settler = Settler(house.broker, SeriesByType(["work"], outcomes=[outcome.value for outcome in Outcome]))
    hands = Hands(Executor(registry), settler, concurrency=2, capacity=6, on_free=lambda: None)
    hands.take(await house.broker.claim(uuid4(), queues=["default"], batch=6))
    free = {len(hands.waiting): hands.free}
    while hands.held:
        gate.release()
        held = hands.held
        await eventually(lambda held=held: hands.held < held)  # type: ignore[misc]
        free[len(hands.waiting)] = hands.free
    assert free == {4: 0, 3: 0, 2: 2, 1: 3, 0: 6}
    settler.close()
    await settler.run()


async def test_an_error_with_a_nul_is_kept_readably(house: House, registry: Registry) -> None:
    async def odd() -> None:
        raise Fail("a\x00b")

    registry.add(odd)
    (task,) = await house.add("odd")
    async with house.working(registry):
        await eventually(lambda: house.status(task) == "failed")
    assert house.outcome(task)[2] == "a\N{REPLACEMENT CHARACTER}b"


# Fault 078: rows that no release of ours would write.
@pytest.mark.parametrize(
    "change",
    [
        "payload = '3'",
        "payload = '[]'",
        "payload = 'null'",
        "timeout_seconds = -1",
        "timeout_seconds = 'NaN'",
    ],
)
async def test_a_malformed_row_does_not_stop_others(house: House, registry: Registry, change: str) -> None:
    async def work() -> None: ...

    registry.add(work)
    (bad,) = await house.add("work")
    house.execute(f"update taketurns.tasks set {change} where id = '{bad}'")
    good = await house.add("work", count=10)
    async with house.working(registry):
        await eventually(lambda: house.are("completed", good))
        await eventually(lambda: house.status(bad) in {"failed", "completed"})


async def test_a_type_that_no_registry_can_have_fails(house: House, registry: Registry) -> None:
    (task,) = await house.add_tasks([NewTask(type="", payload="{}")])
    async with house.working(registry):
        await eventually(lambda: house.status(task) == "failed")


async def test_a_type_of_another_release_is_left_to_it(house: House, registry: Registry) -> None:
    async def work() -> None: ...

    async def news() -> None: ...

    newer = Registry()
    registry.add(work)
    newer.add(news)
    (ours,), (theirs,) = await house.add("work"), await house.add("news")
    async with house.working(registry):
        await eventually(lambda: house.status(ours) == "completed")
        await eventually(lambda: house.status(theirs) == "pending" and "released" in house.events(theirs))
        async with house.working(newer):
            await eventually(lambda: house.status(theirs) == "completed")
    assert house.events(theirs) == ["released"]
    assert house.outcome(theirs)[3] == 0


async def test_a_published_type_is_not_even_claimed_by_who_does_not_know_it(house: House, registry: Registry) -> None:
    async def work() -> None: ...

    async def news() -> None: ...

    newer = Registry()
    registry.add(work)
    newer.add(news)
    async with house.working(newer):
        pass
    (theirs,), (ours,) = await house.add("news"), await house.add("work")
    async with house.working(registry):
        await eventually(lambda: house.status(ours) == "completed")
        assert house.status(theirs) == "pending"
    assert house.events(theirs) == []


async def test_types_are_published_with_their_schemas(house: House, registry: Registry) -> None:
    async def work(ctx: Context, number: int) -> None: ...

    registry.add(work, context_type=Context, max_retries=9, timeout_seconds=30.0, priority=2)
    async with house.working(registry, concurrency=7, name="left hand"):
        assert house.execute("select name, types, concurrency, queues from taketurns.workers") == [
            ("left hand", ["work"], 7, ["default"])
        ]
        ((schema, *options),) = house.execute(
            "select payload_schema, max_retries, timeout_seconds, priority, queue from taketurns.task_types"
        )
    assert (list(schema["properties"]), options) == (["number"], [9, 30.0, 2, "default"])


# Faults 117 and 119
@pytest.mark.parametrize("is_async", [True, False])
@pytest.mark.parametrize("ending", ["returns", "raises"])
async def test_cancelling_a_running_task_stops_it_for_good(
    house: House, registry: Registry, is_async: bool, ending: str
) -> None:
    begun = threading.Event()

    def end() -> None:
        if ending == "raises":
            raise RuntimeError("too late")

    async def wait(ctx: Context) -> None:
        begun.set()
        try:
            await asyncio.Event().wait()
        finally:
            end()

    def wait_in_thread(ctx: Context) -> None:
        begun.set()
        ctx.cancelled.wait(10)
        end()

    registry.add(wait if is_async else wait_in_thread, name="wait", context_type=Context, backoff=AT_ONCE)
    (task,) = await house.add("wait")
    async with house.working(registry) as worker:
        await eventually(begun.is_set)
        await house.broker.cancel("acme", task)
        await eventually(lambda: worker.held == 0)
        await worker.settler.flush()
        assert house.status(task) == "cancelled"
        assert house.events(task) == []


async def test_a_task_cancelled_while_it_waits_in_hand_never_runs(house: House, registry: Registry) -> None:
    gate, ran = asyncio.Event(), []

    async def work(ctx: Context) -> None:
        ran.append(ctx.task_id)
        await gate.wait()

    registry.add(work, context_type=Context)
    first, second = await house.add("work", count=2)
    async with house.working(registry, concurrency=1, batch=2) as worker:
        await eventually(lambda: worker.held == 2 and ran)
        waiting = second if ran == [first] else first
        await house.broker.cancel("acme", waiting)
        await eventually(lambda: worker.held == 1)
        gate.set()
        await eventually(lambda: worker.held == 0)
    assert waiting not in ran
    assert house.status(waiting) == "cancelled"


# Faults 066 and 116: the end of an attempt is reported until it was heard, and the attempt is not made again.
@pytest.mark.parametrize("sqlstate", ["40001", "40P01", "57014"])
async def test_a_settlement_that_fails_is_repeated(house: House, registry: Registry, sqlstate: str) -> None:
    ran = []

    async def work(ctx: Context) -> None:
        ran.append(ctx.task_id)

    registry.add(work, context_type=Context)
    house.execute(
        f"""
        create sequence witness.settlements;
        create function witness.refuse() returns trigger language plpgsql as $$
        begin
            if nextval('witness.settlements') <= 2 then
                raise exception 'as asked' using errcode = '{sqlstate}';
            end if;
            return new;
        end $$;
        create trigger refuse before update on taketurns.tasks for each statement execute function witness.refuse();
        """
    )
    tasks = await house.add("work", count=5)
    async with house.working(registry):
        await eventually(lambda: house.are("completed", tasks))
    assert sorted(ran) == sorted(tasks)
    assert house.value("select last_value from witness.settlements") > 2


async def test_a_lost_connection_in_mid_settlement_costs_no_second_run(house: House, registry: Registry) -> None:
    gate, ran = asyncio.Event(), []

    async def work(ctx: Context) -> None:
        ran.append(ctx.task_id)
        await gate.wait()

    registry.add(work, context_type=Context)
    tasks = await house.add("work", count=5)
    async with house.working(registry):
        await eventually(lambda: len(ran) == 5)
        for application in ("house", "taketurns-listen", "taketurns-lease"):
            assert house.terminate(application)
        gate.set()
        await eventually(lambda: house.are("completed", tasks))
    assert sorted(ran) == sorted(tasks)


class Forgetful:
    """A broker of which the first claim moves tasks, and whose answer is lost."""

    def __init__(self, broker: Any) -> None:
        self._broker = broker
        self.has_forgotten = False

    async def claim(self, *given: Any, **named: Any) -> Any:
        claimed = await self._broker.claim(*given, **named)
        if claimed and not self.has_forgotten:
            self.has_forgotten = True
            raise Unavailable("the answer was lost")
        return claimed

    def __getattr__(self, name: str) -> Any:
        return getattr(self._broker, name)


async def test_a_claim_whose_answer_was_lost_is_released(house: House, registry: Registry) -> None:
    async def work() -> None: ...

    registry.add(work)
    tasks = await house.add("work", count=5)
    broker = Forgetful(house.broker)
    async with house.working(registry, broker=broker):
        await eventually(lambda: house.are("completed", tasks))
    assert broker.has_forgotten
    assert [house.events(task) for task in tasks] == [["released"]] * 5


class Slow:
    """A broker whose settlements wait at a gate."""

    def __init__(self, broker: Any) -> None:
        self._broker = broker
        self.gate = asyncio.Event()

    async def settle(self, reports: Sequence[Report], *, at: datetime | None = None) -> set[UUID]:
        await self.gate.wait()
        settled: set[UUID] = await self._broker.settle(reports, at=at)
        return settled

    def __getattr__(self, name: str) -> Any:
        return getattr(self._broker, name)


# Fault 105
async def test_what_has_ended_is_settled_before_the_worker_leaves(house: House, registry: Registry) -> None:
    async def work() -> None: ...

    registry.add(work)
    tasks = await house.add("work", count=10)
    broker = Slow(house.broker)
    worker = house.worker(registry, broker=broker)
    running = asyncio.create_task(worker.run())
    await eventually(lambda: worker.settler.unsettled == 10)
    worker.stop()
    ended, _ = await asyncio.wait([running], timeout=0.5)
    assert not ended
    assert house.are("processing", tasks)
    broker.gate.set()
    await running
    assert house.are("completed", tasks)
    assert house.leases() == []


async def test_on_stop_what_was_not_started_goes_back_at_once(house: House, registry: Registry) -> None:
    gate, begun = asyncio.Event(), []

    async def work(ctx: Context) -> None:
        begun.append(ctx.task_id)
        await gate.wait()

    registry.add(work, context_type=Context)
    tasks = await house.add("work", count=6)
    worker = house.worker(registry, concurrency=2, batch=6)
    running = asyncio.create_task(worker.run())
    await eventually(lambda: worker.held == 6 and len(begun) == 2)
    before = house.execute("select task_id, run_after, retry_count from taketurns.processing_tasks order by 1")
    worker.stop()
    back = [task for task in tasks if task not in begun]
    await eventually(lambda: house.are("pending", back))
    assert len(back) == 4
    assert house.are("processing", begun)
    after = house.execute("select task_id, run_after, retry_count from taketurns.pending_tasks order by 1")
    assert after == [row for row in before if row[0] in back]
    gate.set()
    await running
    assert house.are("completed", begun)
    assert [house.events(task) for task in back] == [["released"]] * 4


# Fault 102: whoever drains keeps beating, or its work would be taken.
async def test_the_lease_is_beaten_until_the_last_handler_has_ended(house: House, registry: Registry) -> None:
    gate, ran = asyncio.Event(), []

    async def work(ctx: Context) -> None:
        ran.append(ctx.task_id)
        await gate.wait()

    registry.add(work, context_type=Context)
    (task,) = await house.add("work")
    worker = house.worker(registry, beat_seconds=0.1, stale_after_seconds=2.1)
    running = asyncio.create_task(worker.run())
    await eventually(lambda: ran)
    async with house.working(registry, beat_seconds=0.1, stale_after_seconds=2.1):
        worker.stop()
        beat = house.value("select beat from taketurns.workers where id = %s", worker.lease.worker_id)
        await eventually(
            lambda: house.value("select beat from taketurns.workers where id = %s", worker.lease.worker_id) > beat + 22
        )
        gate.set()
        await running
        assert house.status(task) == "completed"
    assert ran == [task]


# Faults 100 and 103
async def test_after_the_grace_handlers_are_stopped_and_their_tasks_released(house: House, registry: Registry) -> None:
    begun = asyncio.Event()

    async def work() -> None:
        begun.set()
        await asyncio.Event().wait()

    registry.add(work)
    (task,) = await house.add_tasks([NewTask(type="work", payload="{}", max_retries=0)])
    for _ in range(5):
        begun.clear()
        worker = house.worker(registry, shutdown_grace_seconds=0.05)
        running = asyncio.create_task(worker.run())
        await eventually(begun.is_set)
        worker.stop()
        await running
        assert worker.left_running == 0
        assert house.status(task) == "pending"
    assert house.events(task) == ["released"] * 5
    assert house.value("select retry_count from taketurns.pending_tasks") == 0


async def test_a_worker_waits_for_its_database(house: House, registry: Registry) -> None:
    async def work() -> None: ...

    registry.add(work)
    (task,) = await house.add("work")
    with house.closed():
        worker = house.worker(registry)
        running = asyncio.create_task(worker.run())
        await eventually(lambda: house.terminate("house"))
        await eventually(lambda: states(worker) == (True, False))
    await eventually(lambda: house.status(task) == "completed")
    assert states(worker) == (True, True)
    worker.stop()
    await running
    assert states(worker) == (False, False)


def states(worker: Worker) -> tuple[bool, bool]:
    return worker.is_healthy, worker.is_ready


# Fault 110: what looks alive and does nothing must not go on.
async def test_a_worker_of_which_a_part_dies_ends(
    house: House, registry: Registry, monkeypatch: pytest.MonkeyPatch
) -> None:
    worker = house.worker(registry)
    monkeypatch.setattr(worker.claiming, "run", broken)
    with pytest.raises(RuntimeError, match="as asked"):
        await worker.run()
    assert house.leases() == []


async def broken() -> None:
    raise RuntimeError("as asked")


# Fault 075: the database's clock decides, and a worker's own does not matter.
async def test_what_a_worker_waits_for_is_judged_by_the_databases_clock(house: House, registry: Registry) -> None:
    async with house.working(registry) as worker:
        due = house.value("select clock_timestamp() + interval '10 seconds'")
        await eventually(lambda: worker.lease.seconds_until(due) is not None)
        left = worker.lease.seconds_until(due)
        assert left is not None
        assert 5 < left <= 10.5


# Fault 109
async def test_a_worker_keeps_nothing_of_the_tasks_it_has_done(
    house: House, registry: Registry, no_collector: None
) -> None:
    async def work(how: str) -> None:
        match how:
            case "raise":
                raise ValueError("as asked")
            case "wait":
                await asyncio.Event().wait()

    def work_in_thread() -> None:
        raise ValueError("as asked")

    registry.add(work)
    registry.add(work_in_thread)
    kinds = [("work", '{"how": "return"}'), ("work", '{"how": "raise"}'), ("work_in_thread", "{}")]
    tasks = [NewTask(type=type, payload=payload, max_retries=0) for type, payload in kinds for _ in range(100)]
    tasks += [NewTask(type="work", payload='{"how": "wait"}', max_retries=0, timeout_seconds=0.01)] * 20
    others = kept(ClaimedTask)
    async with house.working(registry):
        first = await house.add_tasks(tasks)
        await eventually(lambda: not house.held() and not house.value("select count(*) from taketurns.pending_tasks"))
        before, loops = kept(ClaimedTask), len(asyncio.all_tasks())
        second = await house.add_tasks(tasks)
        await eventually(lambda: house.value("select count(*) from taketurns.tasks where finished_at is null") == 0)
        assert house.statuses([*first, *second]) == {"completed": 200, "failed": 440}
        await eventually(lambda: kept(ClaimedTask) <= before)
        assert before - others < 100
        assert sum("handler" in thread.name for thread in threading.enumerate()) <= 16
        await eventually(lambda: len(asyncio.all_tasks()) <= loops)


@pytest.fixture
def no_collector() -> Iterator[None]:
    """The collector of cycles does not come by."""
    gc.collect()
    gc.disable()
    yield
    gc.enable()


def kept(kind: type) -> int:
    """How many objects of a kind there are."""
    return sum(isinstance(thing, kind) for thing in gc.get_objects())


# Fault 112
async def test_a_change_of_the_tables_under_load_costs_no_task(house: House, registry: Registry) -> None:
    async def work() -> None:
        await asyncio.sleep(0.001)

    registry.add(work)
    async with house.working(registry) as worker:
        for change in ("add column x text", "alter column x type varchar(10)", "drop column x"):
            tasks = await house.add("work", count=200)
            await eventually(lambda: worker.settler.unsettled or worker.held)
            house.execute(f"alter table taketurns.tasks {change}")
            await eventually(partial(house.are, "completed", tasks))


# Fault 070: what nobody can run keeps nobody waiting, and is run once somebody can.
async def test_tasks_that_no_living_worker_knows_do_not_block_their_company(house: House, registry: Registry) -> None:
    async def work() -> None: ...

    async def gone() -> None: ...

    later = Registry()
    registry.add(work)
    later.add(gone)
    orphans = await house.add("gone", count=1_200)
    (ours,) = await house.add("work")
    async with house.working(registry):
        await eventually(lambda: house.status(ours) == "completed")
        await eventually(
            lambda: house.value("select count(*) from taketurns.pending_tasks where queue = 'default'") == 0
        )
        assert house.are("pending", orphans)
        assert await house.broker.heal() == 0
        assert await house.broker.cancel("acme", orphans[0]) == "cancelled"
    async with house.working(later):
        await eventually(lambda: house.are("completed", orphans[1:]))


async def test_what_companies_attempts_came_to_is_told_by_a_worker_that_leaves(
    house: House, registry: Registry
) -> None:
    async def work() -> None: ...

    registry.add(work)
    await house.add("work", count=3)
    await house.add("work", company="zeta")
    async with house.working(registry, attempts=Attempts(house.database, every_seconds=3600.0)) as worker:
        await eventually(lambda: worker.settler.tally.completed == 4)
    rows = house.execute(
        "select c.slug, r.completed, (select sum(w) from unnest(r.waits) w) from taketurns.rollups r"
        " join taketurns.companies c on c.id = r.company_id order by 1"
    )
    assert rows == [("acme", 3, 3), ("zeta", 1, 1)]
