"""What a server that is away, full, read-only or wrongly set up does to jobs, and what becomes of them after."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable
from datetime import UTC, datetime, timedelta
from uuid import UUID

import pytest

from taketurns.brokers.redis import RedisBroker
from taketurns.engine.errors import Unavailable, Unconfirmed
from taketurns.engine.job import JobCompany
from taketurns.engine.task import NewTask, Status
from taketurns.storage.ids import new_id
from tests.brokers.cell import claimed_ids, ids, keyed_task, new_tasks, reports
from tests.brokers.redis.cell import RedisCell
from tests.keeping import kept
from tests.valkeys import Valkey, Valkeys
from tests.waiting import eventually

WORKER = UUID(int=1)
COMPANY = UUID(int=7)
THEN = datetime(2026, 1, 1, tzinfo=UTC)
Open = Callable[..., Awaitable[RedisCell]]


@pytest.fixture
async def open_cell() -> AsyncIterator[Open]:
    """Opens a cell on a server of the test's own, with a company `acme`."""
    cells: list[RedisCell] = []

    async def open_on(
        server: Valkey, *, name: str | None = None, patience_seconds: float = 5.0, **options: object
    ) -> RedisCell:
        cell = RedisCell.open(server.url, name or uuid.uuid4().hex, patience_seconds=patience_seconds, **options)
        cells.append(cell)
        await put_company(cell.broker)
        return cell

    yield open_on
    for cell in cells:
        await cell.broker.server.close()
        cell.client.close()


async def put_company(broker: RedisBroker) -> None:
    await broker.put_company(JobCompany(id=COMPANY, slug="acme", updated_at=THEN))


async def claim(broker: RedisBroker, batch: int = 10) -> list[UUID]:
    return claimed_ids(await broker.claim(WORKER, queues=["default"], batch=batch))


async def verbs_are_unavailable(broker: RedisBroker) -> None:
    """Every verb, readers too, says so and nothing else."""
    calls: list[Awaitable[object]] = [
        broker.enqueue("acme", new_tasks()),
        broker.claim(WORKER, queues=["default"], batch=1),
        broker.settle([]),
        broker.release([]),
        broker.rescue(WORKER, watched_beat=None, max_rescues=1),
        broker.promote(),
        broker.cancel("acme", new_id()),
        broker.retry("acme", new_id()),
        broker.prune(kept(timedelta(1))),
        broker.heal(),
        broker.unpark(),
        broker.beats(),
        put_company(broker),
        broker.close_company(COMPANY, is_forced=False),
        broker.reopen_company(COMPANY),
        broker.forget_company(new_id()),
    ]
    answers = await asyncio.gather(*calls, return_exceptions=True)
    assert {type(answer) for answer in answers} == {Unavailable}, answers


async def reads_are_unavailable(broker: RedisBroker) -> None:
    calls = [
        broker.job(COMPANY, new_id()),
        broker.job_events(COMPANY, new_id()),
        broker.held(WORKER),
        broker.overdue(seconds=1),
        broker.check(),
        broker.due_refunds(),
        broker.dead_letters(),
    ]
    answers = await asyncio.gather(*calls, return_exceptions=True)
    assert {type(answer) for answer in answers} == {Unavailable}, answers
    with pytest.raises(Unavailable):
        broker.lease_line(patience_seconds=2)
    with pytest.raises(Unavailable):
        async with broker.wakeups():
            pass


# Fault 144.
async def test_a_server_that_is_away_is_not_taken_for_a_job_that_is_not_there(valkey: Valkeys, open_cell: Open) -> None:
    server = valkey()
    cell = await open_cell(server)
    (job_id,) = ids(await cell.broker.enqueue("acme", new_tasks()))
    server.stop()
    await verbs_are_unavailable(cell.broker)
    await reads_are_unavailable(cell.broker)

    server.start()
    job = await cell.broker.job(COMPANY, job_id)
    assert job is not None
    assert job.status is Status.PENDING
    assert await cell.broker.job(COMPANY, new_id()) is None
    assert await cell.broker.job_events(COMPANY, new_id()) is None
    assert await claim(cell.broker) == [job_id]


async def test_a_job_whose_answer_was_lost_is_found_by_its_id(valkey: Valkeys, open_cell: Open) -> None:
    server = valkey()
    cell = await open_cell(server, patience_seconds=0.3)
    first = ids(await cell.broker.enqueue("acme", new_tasks()))  # from now on the server knows the script
    job_id = new_id()
    task = NewTask(type="work", payload="{}", task_id=job_id)
    server.pause()
    with pytest.raises(Unavailable):
        await cell.broker.enqueue("acme", [task])
    server.go_on()

    await eventually(lambda: cell.client.hexists(cell.key("jobs", COMPANY), str(job_id)))
    (again,) = await cell.broker.enqueue("acme", [task])
    assert (again.task_id, again.replayed) == (job_id, True)
    assert await claim(cell.broker) == [*first, job_id]
    assert cell.contradictions_of(COMPANY) == []


# Fault 147.
async def test_a_full_server_takes_no_job_and_loses_none(valkey: Valkeys, open_cell: Open) -> None:
    server = valkey(maxmemory="5mb", appendonly="no")
    cell = await open_cell(server)
    accepted: list[UUID] = []
    refusal: Unavailable | None = None
    while refusal is None:
        try:
            accepted += ids(await cell.broker.enqueue("acme", new_tasks(20, payload=f'"{"x" * 4_000}"')))
        except Unavailable as error:
            refusal = error
    assert "memory" in str(refusal)
    assert cell.contradictions_of(COMPANY) == []

    # What is there is done all the same, and makes room.
    done: list[UUID] = []
    while claimed := await cell.broker.claim(WORKER, queues=["default"], batch=50):
        assert await cell.broker.settle(reports(claimed)) == set(claimed_ids(claimed))
        done += claimed_ids(claimed)
    assert done == accepted
    assert cell.contradictions_of(COMPANY) == []
    await cell.broker.forget_company(COMPANY)
    await put_company(cell.broker)
    await cell.broker.enqueue("acme", new_tasks())


# Fault 147.
async def test_what_is_set_up_wrongly_is_told(valkey: Valkeys, open_cell: Open) -> None:
    server = valkey()
    cell = await open_cell(server, wait_aof_seconds=5.0)
    assert await cell.broker.check() == []
    server.execute("CONFIG SET", "maxmemory-policy", "allkeys-lru")
    server.execute("CONFIG SET", "appendonly", "no")
    eviction, durability = await cell.broker.check()
    assert "set it to noeviction" in eviction
    assert "set appendonly to yes" in durability
    with pytest.raises(Unavailable):
        await cell.broker.enqueue("acme", new_tasks())


# Fault 147.
async def test_after_everything_was_flushed_nothing_is_left_running(valkey: Valkeys, open_cell: Open) -> None:
    server = valkey()
    cell = await open_cell(server)
    accepted = ids(await cell.broker.enqueue("acme", new_tasks(50)))
    claimed = await cell.broker.claim(WORKER, queues=["default"], batch=5)
    server.execute("FLUSHALL")
    assert await cell.broker.settle(reports(claimed)) == set()
    assert await cell.broker.release(claimed) == set()
    assert await cell.broker.beats() == {}
    assert [await cell.broker.job(COMPANY, job_id) for job_id in accepted] == [None] * 50
    await put_company(cell.broker)
    assert await claim(cell.broker) == []
    (job_id,) = ids(await cell.broker.enqueue("acme", new_tasks()))
    assert await claim(cell.broker) == [job_id]
    assert cell.contradictions_of(COMPANY) == []


# Fault 148.
async def test_a_server_that_becomes_a_replica_is_unavailable_until_it_is_none(
    valkey: Valkeys, open_cell: Open
) -> None:
    server = valkey()
    cell = await open_cell(server)
    (job_id,) = ids(await cell.broker.enqueue("acme", new_tasks()))
    async with cell.broker.wakeups() as wakeups:
        server.execute("REPLICAOF", "127.0.0.1", 1)
        await verbs_are_unavailable(cell.broker)
        assert any("replica" in complaint for complaint in await cell.broker.check())
        server.execute("REPLICAOF", "NO", "ONE")
        assert await claim(cell.broker) == [job_id]
        await cell.broker.enqueue("acme", new_tasks())
        assert await anext(wakeups) == {"default"}


# Fault 148.
async def test_connections_that_are_killed_are_made_again(valkey: Valkeys, open_cell: Open) -> None:
    server = valkey()
    cell = await open_cell(server)
    accepted: list[UUID] = []
    refused = 0
    for _ in range(40):
        killing = asyncio.to_thread(server.execute, "CLIENT KILL", "TYPE", "normal", "SKIPME", "yes")
        pushing = [cell.broker.enqueue("acme", new_tasks()) for _ in range(4)]
        _, *answers = await asyncio.gather(killing, *pushing, return_exceptions=True)
        for answer in answers:
            assert isinstance(answer, list | Unavailable), answer
            accepted += ids(answer) if isinstance(answer, list) else []
            refused += isinstance(answer, Unavailable)
    (last,) = ids(await cell.broker.enqueue("acme", new_tasks()))
    found = await claim(cell.broker, 1_000)
    assert {*accepted, last} <= set(found)
    assert len(found) <= len(accepted) + 1 + refused


# Fault 148.
async def test_a_password_that_is_asked_for_in_mid_run_is_an_outage(valkey: Valkeys, open_cell: Open) -> None:
    server = valkey()
    cell = await open_cell(server)
    with server.client() as operator:
        operator.config_set("requirepass", "secret")
        operator.execute_command("AUTH", "secret")
        operator.execute_command("CLIENT KILL", "TYPE", "normal", "SKIPME", "yes")
        await verbs_are_unavailable(cell.broker)
        await reads_are_unavailable(cell.broker)
        operator.config_set("requirepass", "")
    (job_id,) = ids(await cell.broker.enqueue("acme", new_tasks()))
    assert await claim(cell.broker) == [job_id]


async def test_wake_ups_end_when_the_server_goes(valkey: Valkeys, open_cell: Open) -> None:
    server = valkey()
    cell = await open_cell(server)
    async with cell.broker.wakeups() as wakeups:
        server.kill()
        with pytest.raises(Unavailable):
            await anext(wakeups)
    server.start()
    await put_company(cell.broker)
    async with cell.broker.wakeups() as wakeups:
        await cell.broker.enqueue("acme", new_tasks())
        assert await anext(wakeups) == {"default"}


async def test_no_job_is_lost_that_was_on_the_disk_when_it_was_accepted(valkey: Valkeys, open_cell: Open) -> None:
    server = valkey(appendfsync="everysec")
    cell = await open_cell(server, wait_aof_seconds=10.0)
    accepted: list[UUID] = []
    for _ in range(3):
        answers = await asyncio.gather(*[cell.broker.enqueue("acme", new_tasks(3)) for _ in range(8)])
        accepted += [job_id for answer in answers for job_id in ids(answer)]
        await asyncio.to_thread(server.kill)
        await asyncio.to_thread(server.start)
    assert set(await claim(cell.broker, 1_000)) == set(accepted)


async def unconfirmed(call: Awaitable[object]) -> tuple[UUID, ...]:
    """What stands all the same, though nobody says that it is on the disk."""
    with pytest.raises(Unconfirmed, match="append-only file") as caught:
        await call
    return caught.value.task_ids


async def test_what_is_not_on_the_disk_in_time_is_done_but_not_confirmed(valkey: Valkeys, open_cell: Open) -> None:
    broker = (await open_cell(valkey(appendfsync="no"), wait_aof_seconds=0.05)).broker
    job_id = new_id()
    job = NewTask(type="work", payload="{}", task_id=job_id)
    assert await unconfirmed(broker.enqueue("acme", [job])) == (job_id,)
    assert await broker.job(COMPANY, job_id) is not None
    assert await unconfirmed(broker.cancel("acme", job_id)) == (job_id,)
    assert await unconfirmed(broker.retry("acme", job_id)) == (job_id,)
    assert await claim(broker) == [job_id]
    assert await broker.retry("acme", job_id) is Status.PROCESSING
    assert await broker.cancel("acme", new_id()) is None


async def test_an_answer_about_what_others_have_written_is_confirmed_like_ones_own(
    valkey: Valkeys, open_cell: Open
) -> None:
    server = valkey(appendfsync="no")
    careless = (await open_cell(server, name="shared")).broker
    careful = (await open_cell(server, name="shared", wait_aof_seconds=0.05)).broker
    keyed, cancelled = keyed_task("once"), new_id()
    (job_id,) = ids(await careless.enqueue("acme", [keyed]))
    await careless.enqueue("acme", [NewTask(type="work", payload="{}", task_id=cancelled)])
    await careless.cancel("acme", cancelled)
    assert await unconfirmed(careful.enqueue("acme", [keyed])) == (job_id,)
    assert await unconfirmed(careful.job(COMPANY, job_id, confirmed=True)) == (job_id,)
    assert await unconfirmed(careful.cancel("acme", cancelled)) == (cancelled,)
    assert await unconfirmed(careful.retry("acme", job_id)) == (job_id,)
    server.execute("CONFIG SET", "appendfsync", "always")
    (again,) = await careful.enqueue("acme", [keyed])
    job = await careful.job(COMPANY, job_id, confirmed=True)
    assert (again.task_id, again.replayed, job) == (job_id, True, await careless.job(COMPANY, job_id))
    assert await careful.cancel("acme", cancelled) is Status.CANCELLED
    assert await careful.retry("acme", job_id) is Status.PENDING


async def test_a_call_that_is_cancelled_ends(valkey: Valkeys, open_cell: Open) -> None:
    cell = await open_cell(valkey())
    for _ in range(50):
        calling = asyncio.create_task(call_for_ever(cell.broker))
        await asyncio.sleep(0.002)  # so that it is cancelled anywhere
        calling.cancel()
        async with asyncio.timeout(5):
            with pytest.raises(asyncio.CancelledError):
                await calling


async def call_for_ever(broker: RedisBroker) -> None:
    while True:
        await broker.job(COMPANY, COMPANY)
