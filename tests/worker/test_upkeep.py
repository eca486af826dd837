"""The duties of every worker, one step at a time."""

import asyncio
import uuid
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from taketurns import telemetry
from taketurns.engine.errors import Unavailable
from taketurns.engine.registry import Registry
from taketurns.engine.task import NewTask, Outcome, Report
from taketurns.worker import rounds
from taketurns.worker.upkeep import Heal, Promote, Prune, Rescue, Watch
from tests.keeping import NOT_AT_ALL
from tests.waiting import eventually
from tests.worker.house import House

ONE, TWO = UUID(int=1), UUID(int=2)


def watch() -> Watch:
    return Watch(stale_after_seconds=15, gap_seconds=5)


def test_a_lease_that_stood_still_for_stale_after_is_gone() -> None:
    watched = watch()
    for now in range(15):
        assert watched.look({ONE: 7}, now=now) == []
    assert watched.look({ONE: 7}, now=15) == [(ONE, 7)]


def test_a_lease_that_is_beaten_is_never_gone() -> None:
    watched = watch()
    assert all(watched.look({ONE: now // 10}, now=now) == [] for now in range(100))


def test_tasks_without_a_lease_are_watched_as_long() -> None:
    watched = watch()
    assert all(watched.look({ONE: None}, now=now) == [] for now in range(15))
    assert watched.look({ONE: None}, now=15) == [(ONE, None)]


def test_nothing_is_held_against_a_lease_that_nobody_could_watch() -> None:
    """After an outage of the database every lease looks dead."""
    watched = watch()
    for now in range(14):
        watched.look({ONE: 7, TWO: 1}, now=now)
    assert watched.look({ONE: 7, TWO: 1}, now=60) == []
    for now in range(61, 75):
        assert watched.look({ONE: 7, TWO: now}, now=now) == []
    assert watched.look({ONE: 7, TWO: 75}, now=75) == [(ONE, 7)]


def test_a_lease_that_is_no_more_is_forgotten() -> None:
    watched = watch()
    watched.look({ONE: 7}, now=0)
    watched.look({}, now=1)
    assert watched.look({ONE: 7}, now=5) == []
    assert watched.look({ONE: 7}, now=10) == []
    assert watched.look({ONE: 7}, now=15) == []


@given(st.lists(st.floats(0.1, 30), max_size=60), st.sets(st.integers(0, 59)))
def test_no_lease_is_gone_sooner_than_it_stood_still_under_watch(gaps: list[float], beaten: set[int]) -> None:
    watched, now, beat, since = watch(), 0.0, 0, 0.0
    for number, gap in enumerate(gaps):
        now += gap
        if number in beaten:
            beat += 1
        if number in beaten or gap > 5 or number == 0:
            since = now
        assert bool(watched.look({ONE: beat}, now=now)) == (now - since >= 15)


async def lost_worker(house: House, *, with_lease: bool = True) -> UUID:
    """A worker that claimed and was heard of no more."""
    worker_id = uuid.uuid4()
    if with_lease:
        house.execute(
            "insert into taketurns.workers (id, name, host, version, queues, types, concurrency, started_at, beat_at)"
            " values (%s, 'lost', 'there', '0', '{default}', '{}', 1, clock_timestamp(), clock_timestamp())",
            worker_id,
        )
    assert await house.broker.claim(worker_id, queues=["default"], batch=10)
    return worker_id


def rescue(house: House, clock: list[float]) -> Rescue:
    lease = house.worker(Registry()).lease
    return Rescue(house.broker, lease=lease, stale_after_seconds=15, max_rescues=3, clock=lambda: clock[0])


@pytest.mark.parametrize("with_lease", [True, False])
async def test_the_tasks_of_a_lost_worker_are_rescued(house: House, with_lease: bool) -> None:
    tasks = await house.add("work", count=3)
    await lost_worker(house, with_lease=with_lease)
    clock = [0.0]
    duty = rescue(house, clock)
    for clock[0] in range(15):
        await duty.step()
    assert house.are("processing", tasks)
    clock[0] = 15
    await duty.step()
    assert house.are("pending", tasks)
    assert house.leases() == []


# Fault 124: what a row says of its age is of no consequence.
async def test_a_row_of_long_ago_is_rescued_like_any_other(house: House) -> None:
    tasks = await house.add("work", count=2)
    await lost_worker(house)
    house.execute("update taketurns.processing_tasks set claimed_at = claimed_at - interval '60 days'")
    house.execute("update taketurns.tasks set created_at = created_at - interval '10 years'")
    clock = [0.0]
    duty = rescue(house, clock)
    for clock[0] in range(17):
        await duty.step()
    assert house.are("pending", tasks)
    assert [house.events(task) for task in tasks] == [["rescued"]] * 2
    claimed = await house.broker.claim(uuid.uuid4(), queues=["default"], batch=10)
    await house.broker.settle([Report(task, Outcome.COMPLETED) for task in claimed])
    assert house.are("completed", tasks)


async def test_promote_answers_when_the_next_task_is_due(house: House) -> None:
    async with house.working(Registry()) as worker:
        await eventually(lambda: worker.lease.seconds_until(house.value("select clock_timestamp()")) is not None)
        duty = Promote(house.broker, lease=worker.lease)
        assert await duty.step() == 1.0
        await house.add_tasks([NewTask(type="work", payload="{}", delay_seconds=0.5)])
        assert 0 < await duty.step() <= 0.5


async def test_prune_works_off_arrears_in_small_batches(house: House) -> None:
    await house.add("work", count=1_000)
    await house.add("work", count=500)
    house.execute(
        "update taketurns.tasks set finished_at = clock_timestamp() - interval '8 days';"
        "delete from taketurns.pending_tasks"
    )
    duty = Prune(house.broker, retention=NOT_AT_ALL)
    assert await duty.step() < 1
    assert house.value("select count(*) from taketurns.tasks") == 500
    assert await duty.step() > 30
    assert house.value("select count(*) from taketurns.tasks") == 0


async def test_heal_finds_companies_outside_the_rotation(house: House) -> None:
    await house.add("work", count=3)
    house.execute("delete from taketurns.turns")
    await Heal(house.broker).step()
    assert house.value("select count(*) from taketurns.turns") == 1


class Flaky:
    """A duty that fails as often as it is told to."""

    name = "flaky"

    def __init__(self, errors: list[Exception]) -> None:
        self.errors = errors
        self.is_done = asyncio.Event()

    async def step(self) -> float:
        if self.errors:
            raise self.errors.pop()
        self.is_done.set()
        return 60


async def test_a_duty_that_fails_is_done_again() -> None:
    duty = Flaky([Unavailable("away"), RuntimeError("odd")])
    failed = telemetry.DUTIES_FAILED.labels("flaky")
    before = failed._value.get()
    keeping = asyncio.create_task(rounds.keep(duty))
    await eventually(duty.is_done.is_set)
    keeping.cancel()
    assert failed._value.get() - before == 2


async def test_one_duty_that_fails_stops_no_other(house: House) -> None:
    async def work() -> None: ...

    registry = Registry()
    registry.add(work)
    house.execute("drop function taketurns.promote; drop function taketurns.heal_rotation")
    async with house.working(registry) as worker:
        tasks = await house.add("work", count=3)
        await eventually(lambda: house.are("completed", tasks))
        assert worker.is_healthy


async def test_parts_end_though_a_cancellation_is_lost() -> None:
    begun = asyncio.Event()

    async def deaf_once() -> None:
        begun.set()
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            await asyncio.Event().wait()

    part = asyncio.create_task(deaf_once())
    await begun.wait()
    await rounds.end([part])
    assert part.cancelled()
    await rounds.end([part])


async def test_a_pass_does_a_duty_that_has_no_end_for_a_while_only() -> None:
    class Endless:
        name = "endless"
        rounds = 0

        async def step(self) -> float:
            self.rounds += 1
            return 0.0

    endless = Endless()
    await rounds.keep_once(endless, most_seconds=0.01)
    assert endless.rounds >= 1
