"""Companies are taken in, changed and deleted without breaking what their tasks and turns rely on."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from uuid import UUID, uuid4

import pytest
from hypothesis import given
from hypothesis import strategies as st

from taketurns.brokers.postgres import PostgresBroker
from taketurns.companies import directory, quotas
from taketurns.companies.errors import CompanyHasOpenTasks, SlugTaken
from taketurns.engine.errors import Unavailable, UnknownCompany
from taketurns.engine.quota import Quotas
from taketurns.engine.task import ClaimedTask, NewTask, Outcome, Report
from taketurns.storage.database import Database, call
from tests.waiting import PATIENCE

TASK = NewTask(type="work", payload="{}")


async def claim(broker: PostgresBroker, count: int = 100) -> list[ClaimedTask]:
    return await broker.claim(uuid4(), queues=["default"], batch=count)


async def end(broker: PostgresBroker, claimed: Sequence[ClaimedTask]) -> None:
    await broker.settle([Report(task, Outcome.COMPLETED) for task in claimed])


async def rows_of(database: Database, company_id: UUID) -> dict[str, int]:
    """How many rows of each table a company owns."""
    counts = {}
    async with database.connection() as connection:
        tables = await connection.execute(
            "select table_name from information_schema.columns where table_schema = %s and column_name = 'company_id'",
            (database.schema,),
        )
        for (table,) in await tables.fetchall():
            cursor = await connection.execute(
                f"select count(*) from {database.schema}.{table} where company_id = %s".encode(), (company_id,)
            )
            ((count,),) = await cursor.fetchall()
            if count:
                counts[table] = count
    return counts


async def test_a_company_is_found_by_its_id_and_its_slug(database: Database) -> None:
    made = await directory.create(database, name="Acme", slug="acme", weight=3, max_in_flight=7)
    assert await directory.find(database, made.id) == made
    assert await directory.find(database, "acme") == made
    assert (made.weight, made.max_in_flight, made.paused) == (3, 7, False)
    assert await directory.find(database, uuid4()) is None
    assert await directory.find(database, "acme2") is None


async def test_a_slug_is_made_from_the_name_or_from_the_id(database: Database) -> None:
    first = await directory.create(database, name="Émile & Söhne GmbH")
    assert first.slug == "emile-sohne-gmbh"
    second = await directory.create(database, name="Émile & Söhne GmbH")
    assert second.slug == f"company-{second.id.hex[-12:]}"
    third = await directory.create(database, name="株式会社")
    assert third.slug == f"company-{third.id.hex[-12:]}"


async def test_a_slug_belongs_to_one_company(database: Database) -> None:
    made = await asyncio.gather(
        *(directory.create(database, name="Acme", slug="acme") for _ in range(8)), return_exceptions=True
    )
    assert sum(isinstance(one, directory.Company) for one in made) == 1
    assert sum(isinstance(one, SlugTaken) for one in made) == 7


@given(st.text(max_size=200))
def test_a_suggested_slug_is_a_slug(name: str) -> None:
    slug = directory.slug_for(name)
    assert slug is None or directory.is_slug(slug)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "-acme",
        "acme-",
        "Acme",
        "a b",
        "a_b",
        "a\0",
        "é",
        "a" * 65,
        "01a22c99-96bf-75d8-9883-152c1da2084e",
        "a\n",
        "%00",
    ],
)
def test_what_is_no_slug(text: str) -> None:
    assert not directory.is_slug(text)


def test_a_reference_is_an_id_or_a_slug_or_nothing() -> None:
    company_id = uuid4()
    assert directory.reference(str(company_id)) == company_id
    assert directory.reference(str(company_id).upper()) == company_id
    assert directory.reference("acme") == "acme"
    for text in ("", "a\0", "{" + str(company_id) + "}", "A", "x" * 300):
        assert directory.reference(text) is None


async def test_companies_are_paged_newest_first(database: Database) -> None:
    made = [await directory.create(database, name=f"Company {number}") for number in range(7)]
    found: list[directory.Company] = []
    after = None
    while True:
        page = await directory.page(database, limit=3, after=after)
        found += page.companies
        if page.next_after is None:
            break
        after = page.next_after
    assert found == made[::-1]
    assert (await directory.page(database, limit=2, offset=3)).companies == made[::-1][3:5]


async def test_a_change_changes_what_it_names(database: Database) -> None:
    made = await directory.create(database, name="Acme", slug="acme", weight=2, max_in_flight=5)
    changed = await directory.change(database, "acme", {"name": "Acme Ltd", "max_in_flight": None})
    assert changed is not None
    assert (changed.name, changed.weight, changed.max_in_flight) == ("Acme Ltd", 2, None)
    assert changed.updated_at > made.updated_at
    assert await directory.change(database, "acme", {}) == changed
    assert await directory.change(database, "nobody", {"weight": 2}) is None
    assert await directory.change(database, "nobody", {"paused": False}) is None


async def test_a_pause_takes_the_turns_and_its_end_gives_them_back(database: Database, broker: PostgresBroker) -> None:
    company = await directory.create(database, name="Acme", slug="acme")
    await broker.enqueue("acme", [TASK] * 3)
    await directory.change(database, "acme", {"paused": True})
    assert await claim(broker) == []
    assert "turns" not in await rows_of(database, company.id)
    await directory.change(database, "acme", {"paused": False})
    assert len(await claim(broker)) == 3


async def test_no_task_is_forgotten_when_pauses_and_claims_meet(database: Database, broker: PostgresBroker) -> None:
    await directory.create(database, name="Acme", slug="acme")
    await broker.enqueue("acme", [TASK] * 40)

    async def toggle() -> None:
        for _ in range(20):
            await directory.change(database, "acme", {"paused": True})
            await directory.change(database, "acme", {"paused": False})

    async def work() -> int:
        served = 0
        for _ in range(60):
            claimed = await claim(broker, 1)
            await end(broker, claimed)
            served += len(claimed)
        return served

    _, first, second = await asyncio.gather(toggle(), work(), work())
    rest = await claim(broker)
    assert first + second + len(rest) == 40


async def test_a_company_with_open_tasks_is_not_deleted(database: Database, broker: PostgresBroker) -> None:
    company = await directory.create(database, name="Acme", slug="acme")
    await broker.enqueue("acme", [NewTask(type="work", payload="{}", delay_seconds=60)])
    with pytest.raises(CompanyHasOpenTasks):
        await directory.delete(database, "acme")
    await broker.database.call("promote", 10, None)
    await broker.enqueue("acme", [TASK])
    claimed = await claim(broker)
    with pytest.raises(CompanyHasOpenTasks):
        await directory.delete(database, company.id)
    await end(broker, claimed)
    with pytest.raises(CompanyHasOpenTasks):
        await directory.delete(database, "acme")
    assert await directory.find(database, "acme") == company


async def test_a_deleted_company_leaves_nothing_and_harms_no_other(database: Database, broker: PostgresBroker) -> None:
    company = await directory.create(database, name="Acme", slug="acme")
    other = await directory.create(database, name="Other", slug="other")
    keyed = NewTask(type="work", payload="{}", idempotency_key="k", fingerprint=b"x")
    for slug in ("acme", "other"):
        await directory.change(database, slug, {"quotas": Quotas(hour=100)})
        await quotas.reserve(database, slug, [uuid4()])
    for slug in ("acme", "other"):
        await broker.enqueue(slug, [TASK, keyed])
    for task in await claim(broker):
        await broker.settle([Report(task, Outcome.RETRY, delay_seconds=0)])
    await broker.promote()
    claimed = await claim(broker, 4)
    await broker.settle([Report(task, Outcome.FAILED) for task in claimed])
    assert set(await rows_of(database, company.id)) == {
        "lines",
        "turns",
        "tasks",
        "task_events",
        "idempotency_keys",
        "quota_usage",
        "quota_changes",
        "job_reservations",
    }
    before = await rows_of(database, other.id)
    assert await directory.delete(database, "acme")
    assert await rows_of(database, company.id) == {}
    assert await rows_of(database, other.id) == before
    assert not await directory.delete(database, "acme")
    assert not await directory.delete(database, company.id)
    with pytest.raises(UnknownCompany):
        await broker.enqueue("acme", [TASK])


async def test_a_task_on_its_way_in_is_waited_for(
    database: Database, broker: PostgresBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    await directory.create(database, name="Acme", slug="acme")
    async with database.transaction() as connection:
        await broker.enqueue_on(connection, "acme", [TASK])
        deletion = asyncio.create_task(directory.delete(database, "acme"))
        await waits_for_a_lock(database)
    with pytest.raises(CompanyHasOpenTasks):
        await deletion
    monkeypatch.setattr(directory, "LOCK_SECONDS", 0.05)
    async with database.transaction() as connection:
        await broker.enqueue_on(connection, "acme", [TASK])
        with pytest.raises(Unavailable):
            await directory.delete(database, "acme")


async def test_a_deletion_waits_for_the_claim_that_decides_and_not_for_ever(
    database: Database, broker: PostgresBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    company = await directory.create(database, name="Acme", slug="acme")
    await broker.enqueue("acme", [TASK])
    await end(broker, await claim(broker))
    hold = f"select pg_advisory_xact_lock({database.schema}.cell_lock())".encode()
    monkeypatch.setattr(directory, "LOCK_SECONDS", PATIENCE)
    async with database.transaction() as connection:
        await connection.execute(hold)
        deletion = asyncio.create_task(directory.delete(database, "acme"))
        await waits_for_a_lock(database)
        with monkeypatch.context() as impatient:
            impatient.setattr(directory, "LOCK_SECONDS", 0.05)
            with pytest.raises(Unavailable):
                await directory.delete(database, "acme")
    assert await deletion
    assert await rows_of(database, company.id) == {}


async def waits_for_a_lock(database: Database, waiting: int = 1) -> None:
    async with asyncio.timeout(PATIENCE), database.connection() as connection:
        while True:
            cursor = await connection.execute(
                "select from pg_locks l join pg_database d on d.oid = l.database"
                " where d.datname = current_database() and l.locktype in ('advisory', 'relation') and not l.granted"
            )
            if cursor.rowcount >= waiting:
                return


async def test_a_task_that_is_run_again_does_not_outlive_its_company(
    database: Database, broker: PostgresBroker
) -> None:
    """The deletion stands in the queue for the company's lock, and the retry behind it."""
    company = await directory.create(database, name="Acme", slug="acme")
    await broker.enqueue("acme", [TASK])
    (task,) = await claim(broker)
    await end(broker, [task])
    async with database.transaction() as connection:
        await call(connection, database.schema, "join_rotation", company.id, ["default"])
        deletion = asyncio.create_task(directory.delete(database, "acme"))
        await waits_for_a_lock(database)
        retry = asyncio.create_task(broker.retry("acme", task.task_id))
        await waits_for_a_lock(database, 2)
    assert await deletion
    assert await retry is None
    assert await rows_of(database, company.id) == {}


async def test_a_task_that_moves_meanwhile_keeps_its_company(database: Database, broker: PostgresBroker) -> None:
    """The deletion has looked at the scheduled tasks and waits for those that run, when one is to be tried again."""
    await directory.create(database, name="Acme", slug="acme")
    await broker.enqueue("acme", [TASK])
    (task,) = await claim(broker)
    async with database.transaction() as connection:
        await connection.execute(f"lock table {database.schema}.processing_tasks in access exclusive mode".encode())
        deletion = asyncio.create_task(directory.delete(database, "acme"))
        await waits_for_a_lock(database)
        await call(
            connection,
            database.schema,
            "settle",
            *([value] for value in (task.company_id, task.task_id, task.claim_token, "retry", None, "busy", 60.0)),
        )
    with pytest.raises(CompanyHasOpenTasks):
        await deletion


async def test_tasks_and_deletions_that_race_leave_no_task_without_a_company(
    database: Database, broker: PostgresBroker
) -> None:
    for _ in range(10):
        company = await directory.create(database, name="Acme", slug="acme")
        made, deleted = await asyncio.gather(
            broker.enqueue("acme", [TASK]), directory.delete(database, "acme"), return_exceptions=True
        )
        if isinstance(made, BaseException):
            assert isinstance(made, UnknownCompany)
            assert deleted is True
            assert await rows_of(database, company.id) == {}
        else:
            assert isinstance(deleted, CompanyHasOpenTasks)
            await end(broker, await claim(broker))
            assert await directory.delete(database, "acme")
