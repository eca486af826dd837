"""A company is deleted whatever it owns, in batches that anybody goes on with, and nothing of it moves meanwhile."""

from __future__ import annotations

import asyncio
import json
from datetime import UTC, datetime, timedelta
from uuid import UUID, uuid4

import pytest

from taketurns.brokers.postgres import PostgresBroker
from taketurns.brokers.redis import RedisBroker
from taketurns.companies import deletion, directory, keys, pauses, quotas
from taketurns.companies.deletion import Forgetting
from taketurns.companies.errors import CompanyHasOpenTasks
from taketurns.companies.following import as_told
from taketurns.companies.keys import Stamp
from taketurns.engine import schedule
from taketurns.engine.quota import Quotas
from taketurns.engine.task import NewTask, Outcome, Report, Status, Unique
from taketurns.history.tasks import Filter
from taketurns.operations import ledger
from taketurns.operations.ledger import Kind, NewOperation
from taketurns.schedules import timetable
from taketurns.schedules.timetable import NewSchedule
from taketurns.storage.audit import Actor, ActorKind
from taketurns.storage.database import Database, call
from tests.brokers.redis.cell import RedisCell
from tests.companies.test_directory import claim, rows_of
from tests.waiting import PATIENCE

TASK = NewTask(type="work", payload="{}")
LATER = NewTask(type="work", payload="{}", delay_seconds=60)
STAMP = Stamp(environment="test", peppers=(b"pepper",))
BY = Actor(kind=ActorKind.COMMAND, name="test")
STAYS = {"audit_entries"}


async def furnish(database: Database, broker: PostgresBroker, slug: str) -> UUID:
    """A company with something of everything."""
    company = await directory.create(database, name=slug, slug=slug, quotas=Quotas(hour=100), by=BY)
    await keys.create_for_company(database, slug, stamp=STAMP, name="a key", scopes=["tasks:read"], by=BY)
    await pauses.put(database, slug, queue=None, type="never", by=BY)
    await timetable.create(
        database,
        slug,
        NewSchedule(
            name="nightly",
            type="work",
            payload="{}",
            queue="default",
            priority=5,
            max_retries=0,
            timeout_seconds=None,
            cron=schedule.read("0 3 * * *", "UTC"),
        ),
        by=BY,
    )
    await quotas.reserve(database, slug, [uuid4()])
    unique = NewTask(type="work", payload="{}", tags=("eu",), unique=Unique(key="one"))
    keyed = NewTask(type="work", payload="{}", idempotency_key="k", fingerprint=b"x")
    made = await broker.enqueue(slug, [unique, keyed, TASK])
    for task in await broker.claim(uuid4(), queues=["default"], batch=3):
        outcome = Outcome.RETRY if task.task_id == made[0].task_id else Outcome.FAILED
        await broker.settle([Report(task, outcome, delay_seconds=60)])
    await broker.enqueue(slug, [TASK, TASK, LATER])
    await ledger.create(database, slug, NewOperation(kind=Kind.CANCEL, task_ids=[made[0].task_id]))
    async with database.connection() as connection:
        schema = database.schema
        for statement in (
            "insert into {}.buckets (company_id, number, owed, seconds, at) values (%s, 1, 0, 1, now())",
            "insert into {}.rollups values (%s, 'tasks', 10, now(), 1, 0, 0, '{{}}')",
            "insert into {}.budgets (company_id, name) values (%s, 'mail')",
            "insert into {}.watches (company_id, task_id, until) values (%s, gen_random_uuid(), now())",
            "insert into {}.prunings (company_id, status, keep, place) values (%s, 'failed', '1 d', gen_random_uuid())",
        ):
            await connection.execute(statement.format(schema).encode(), (company.id,))
    return company.id


async def delete_without_forgetting(database: Database, company_id: UUID) -> None:
    """As a process that dies after the first transaction."""
    async with database.transaction() as connection:
        assert await call(connection, database.schema, "delete_company", company_id, 2_000, True) == [("deleted",)]


async def test_every_table_that_has_rows_of_a_company_is_emptied_of_them(database: Database) -> None:
    """A new table is among them by itself; one that is not is named here."""
    async with database.connection() as connection:
        found = await connection.execute(
            "select table_name from information_schema.columns where table_schema = %s and column_name = 'company_id'",
            (database.schema,),
        )
        names = {name for (name,) in await found.fetchall()}
    assert names - set(deletion.TABLES) == {*STAYS, "deletions", "turns"}


async def test_a_company_is_deleted_by_force_and_only_its_audit_stays(
    database: Database, broker: PostgresBroker
) -> None:
    acme, zeta = [await furnish(database, broker, slug) for slug in ("acme", "zeta")]
    for slug in ("acme", "zeta"):
        await broker.enqueue(slug, [TASK] * 3)
    assert await claim(broker, 1)
    before = await rows_of(database, acme)
    assert {*deletion.TABLES, "turns", *STAYS} - set(before) <= {"processing_tasks", "quota_changes"}
    others = await rows_of(database, zeta)
    with pytest.raises(CompanyHasOpenTasks):
        await directory.delete(database, "acme", by=BY)
    assert await rows_of(database, acme) == before
    assert await directory.delete(database, "acme", is_forced=True, by=BY)
    assert await rows_of(database, acme) == {"audit_entries": before["audit_entries"] + 1}
    assert await rows_of(database, zeta) == others


async def test_what_a_deletion_leaves_never_comes_into_the_rotation_again(
    database: Database, broker: PostgresBroker
) -> None:
    company = await directory.create(database, name="Acme", slug="acme")
    await broker.enqueue("acme", [TASK, TASK, TASK, TASK, LATER, NewTask(type="odd", payload="{}")])
    worker = uuid4()
    running = await broker.claim(worker, queues=["default"], batch=4)
    async with database.transaction() as connection:
        await connection.execute(
            f"select from {database.schema}.processing_tasks where task_id = any (%s) for update".encode(),
            ([task.task_id for task in running[:3]],),
        )
        await delete_without_forgetting(database, company.id)
    assert {task.task_id for task in await broker.held(worker)} == {task.task_id for task in running[:3]}
    retried, released, _ = running[:3]  # the third is rescued
    await broker.settle([Report(retried, Outcome.RETRY, delay_seconds=0)])
    await broker.release([released])
    await broker.rescue(worker, watched_beat=None, max_rescues=3)
    await broker.promote()
    await broker.heal()
    await broker.unpark()
    assert not (await rows_of(database, company.id)).keys() & {"lines", "turns"}
    assert await claim(broker) == []
    left = await rows_of(database, company.id)
    assert not left.keys() & {"lines", "turns", "processing_tasks", "companies"}
    assert left["pending_tasks"] == 4
    assert await deletion.forget(database, company.id)
    assert await rows_of(database, company.id) == {}


async def test_a_deletion_that_was_interrupted_is_gone_on_with(database: Database, broker: PostgresBroker) -> None:
    company_id = await furnish(database, broker, "acme")
    await delete_without_forgetting(database, company_id)
    left = sum((await rows_of(database, company_id)).values())
    while not await deletion.forget(database, company_id, seconds=0, most=1):
        now_left = sum((await rows_of(database, company_id)).values())
        assert now_left == left - 1
        left = now_left
        if left <= 10:
            break
    forgetting = Forgetting(database, most=2)
    assert await forgetting.step() >= 1
    assert set(await rows_of(database, company_id)) == STAYS
    assert await forgetting.step() >= 1


async def test_two_that_go_on_with_a_deletion_leave_nothing_together(
    database: Database, broker: PostgresBroker
) -> None:
    company_id = await furnish(database, broker, "acme")
    await delete_without_forgetting(database, company_id)

    async def go_on() -> None:
        while "deletions" in await rows_of(database, company_id):
            await deletion.forget(database, company_id, most=1)

    async with asyncio.timeout(30):
        await asyncio.gather(go_on(), go_on())
    assert set(await rows_of(database, company_id)) == STAYS


@pytest.mark.parametrize("under_way", ["reschedule", "delete_task", "note_matches"])
async def test_what_was_under_way_when_a_company_went_leaves_nothing_of_it(
    database: Database, broker: PostgresBroker, under_way: str
) -> None:
    """Each of these holds a row until it ends, and has written to a table that is emptied before that row's."""
    company = await directory.create(database, name="Acme", slug="acme", quotas=Quotas(hour=100))
    ended, waiting = await broker.enqueue("acme", [TASK, TASK])
    (claimed,) = await broker.claim(uuid4(), queues=["default"], batch=1)
    assert claimed.task_id == ended.task_id
    await broker.settle([Report(claimed, Outcome.COMPLETED)])
    operation, _ = await ledger.create(
        database, "acme", NewOperation(kind=Kind.RETRY, wanted=Filter(statuses=frozenset({Status.FAILED})))
    )
    now = datetime.now(UTC)
    arguments: dict[str, tuple[object, ...]] = {
        "reschedule": ("acme", waiting.task_id, now + timedelta(days=1)),
        "delete_task": ("acme", ended.task_id),
        "note_matches": (company.id, operation.id, None, None, [ended.task_id, waiting.task_id], now),
    }
    async with database.transaction() as connection:
        await call(connection, database.schema, under_way, *arguments[under_way])
        deleting = asyncio.create_task(directory.delete(database, "acme", is_forced=True))
        await eventually_waiting(database)
    assert await deleting
    assert await rows_of(database, company.id) == {}


async def test_a_row_that_was_changed_while_it_was_waited_for_is_forgotten_too(database: Database) -> None:
    company = await directory.create(database, name="Acme", slug="acme")
    operation, _ = await ledger.create(
        database, "acme", NewOperation(kind=Kind.RETRY, wanted=Filter(statuses=frozenset({Status.FAILED})))
    )
    await delete_without_forgetting(database, company.id)
    async with database.transaction() as connection:
        await call(connection, database.schema, "end_step", company.id, operation.id, datetime.now(UTC), 1)
        forgetting = asyncio.create_task(deletion.forget(database, company.id))
        await eventually_waiting(database)
    assert await forgetting
    assert await rows_of(database, company.id) == {}


async def eventually_waiting(database: Database) -> None:
    """Until somebody in this database waits for another one's lock."""
    async with database.connection() as connection, asyncio.timeout(PATIENCE):
        waiting = "select from pg_stat_activity where datname = current_database() and wait_event_type = 'Lock'"
        while not (await connection.execute(waiting)).rowcount:
            pass


async def test_no_key_of_a_deleted_company_s_jobs_is_left(
    database: Database, valkey_url: str, valkey_cell: str
) -> None:
    cell = RedisCell.open(valkey_url, valkey_cell)
    try:
        jobs: RedisBroker = cell.broker
        company = await directory.create(database, name="Acme", slug="acme")
        await jobs.put_company(as_told(company))
        await jobs.enqueue("acme", [TASK, TASK, TASK, TASK, LATER])
        ended, running, *_ = await jobs.claim(uuid4(), queues=["default"], batch=3)
        await jobs.settle([Report(ended, Outcome.COMPLETED)])
        assert await directory.delete(database, "acme")
        await jobs.forget_company(company.id)
        assert await jobs.settle([Report(running, Outcome.COMPLETED)]) == set()
        text = str(company.id)
        for key in cell.client.scan_iter(match=f"{cell.prefix}:*", count=1_000):
            assert text not in key
            assert text not in json.dumps(everything_in(cell, key)), key
    finally:
        await cell.close()


def everything_in(cell: RedisCell, key: str) -> object:
    kind = cell.client.type(key)
    if kind == "hash":
        return cell.client.hgetall(key)
    if kind == "zset":
        return cell.client.zrange(key, 0, -1)
    if kind == "set":
        return sorted(cell.client.smembers(key))
    if kind == "list":
        return cell.client.lrange(key, 0, -1)
    return cell.client.get(key) if kind == "string" else cell.client.xrange(key)
