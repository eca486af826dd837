"""The wall around each company: what the role of companies sees and may do, in every table and with every function."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import AsyncIterator, Awaitable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any
from unittest.mock import ANY

import psycopg
import pytest
from psycopg import sql
from sqlalchemy import Table, make_url, select
from sqlalchemy.dialects import postgresql

from taketurns.brokers.postgres import PostgresBroker
from taketurns.companies import directory
from taketurns.companies.directory import Company
from taketurns.engine.errors import UnknownCompany
from taketurns.engine.task import NewTask, Status
from taketurns.history import tasks
from taketurns.storage import schema, walls
from taketurns.storage.database import COMPANY, Database, conninfo
from taketurns.storage.models import Base, Task
from taketurns.storage.walls import RoleRefused
from tests.pooler import TransactionPooler
from tests.servers import DatabaseServer

Connection = psycopg.Connection[Any]
TASK = NewTask(type="work", payload="{}")
OWNED = [table for table in Base.metadata.sorted_tables if "company_id" in table.columns or table.name == "companies"]
READ = [table for table in OWNED if "select" in walls.TABLES.get(table.name, "")]
WRITTEN = [table for table in OWNED if "insert" in walls.TABLES.get(table.name, "")]
_VALUES = {
    "UUID": "gen_random_uuid()",
    "TEXT": "gen_random_uuid()::text",
    "VARCHAR(64)": "gen_random_uuid()::text",
    "TIMESTAMP WITH TIME ZONE": "now()",
    "JSON": "'{}'",
    "JSONB": "'{}'",
    "BYTEA": "''",
    "BOOLEAN": "false",
    "INTEGER[]": "'{}'",
    "INTERVAL": "interval '1 day'",
}
_DIALECT = postgresql.dialect()  # type: ignore[no-untyped-call]
_ONE_OF_A_FEW = {
    "actor_kind": "'company'",
    "kind": "'cancel'",
    "lane": "'tasks'",
    "missed": "'skip'",
    "period": "'hour'",
    "seconds": "10",
}


def owner_column(table: Table) -> str:
    return "id" if table.name == "companies" else "company_id"


def put(connection: Connection, table: Table, company_id: uuid.UUID) -> None:
    """Insert a row of a company, with a value in each column that must have one."""
    values = {
        column.name: _ONE_OF_A_FEW.get(column.name) or _VALUES.get(str(column.type.compile(_DIALECT)), "1")
        for column in table.columns
        if not column.nullable and (column.server_default is None or (table.name, column.name) == ("pauses", "queue"))
    } | {owner_column(table): f"'{company_id}'"}
    names = sql.SQL(", ").join(map(sql.Identifier, values))
    insert = sql.SQL("insert into {} ({}) values ({})").format(
        sql.Identifier("taketurns", table.name), names, sql.SQL(", ").join(map(sql.SQL, values.values()))
    )
    connection.execute(insert)


@pytest.fixture
def owner(database_url: str) -> Iterator[Connection]:
    with psycopg.connect(conninfo(database_url), autocommit=True) as connection:
        yield connection


@pytest.fixture
def role(company_url: str) -> Iterator[Connection]:
    with psycopg.connect(conninfo(company_url), autocommit=True) as connection:
        yield connection


@pytest.fixture
def two_companies(owner: Connection) -> tuple[uuid.UUID, uuid.UUID]:
    """Each with a row in every table of what companies own."""
    ids = uuid.uuid4(), uuid.uuid4()
    for company_id in ids:
        for table in OWNED:
            put(owner, table, company_id)
    return ids


@contextmanager
def behind(connection: Connection, company_id: object) -> Iterator[None]:
    """A transaction for this company."""
    with connection.transaction():
        connection.execute("select set_config(%s, %s, true)", [COMPANY, str(company_id)])
        yield


def test_every_table_of_what_companies_own_has_a_wall(owner: Connection) -> None:
    assert walls.gaps(owner, schema="taketurns") == []
    owner.execute("create table taketurns.invoices (company_id uuid, number integer)")
    assert walls.gaps(owner, schema="taketurns") == ["invoices"]
    owner.execute("alter table taketurns.invoices enable row level security")
    owner.execute("create policy company on taketurns.invoices using (true)")
    assert walls.gaps(owner, schema="taketurns") == ["invoices"]
    owner.execute("drop policy company on taketurns.invoices")
    owner.execute("alter table taketurns.tasks disable row level security")
    assert walls.gaps(owner, schema="taketurns") == ["invoices", "tasks"]


@pytest.mark.parametrize("table", READ, ids=str)
def test_a_query_that_forgets_its_company_sees_the_rows_of_one_all_the_same(
    role: Connection, two_companies: tuple[uuid.UUID, uuid.UUID], table: Table
) -> None:
    forgetful = sql.SQL("select {} from {}").format(
        sql.Identifier(owner_column(table)), sql.Identifier("taketurns", table.name)
    )
    assert role.execute(forgetful).fetchall() == []
    for company_id in two_companies:
        with behind(role, company_id):
            assert role.execute(forgetful).fetchall() == [(company_id,)]
    for nobody in ("", uuid.uuid4()):
        with behind(role, nobody):
            assert role.execute(forgetful).fetchall() == []
    assert role.execute(forgetful).fetchall() == []


@pytest.mark.parametrize("table", WRITTEN, ids=str)
def test_nothing_is_written_for_another_company(
    role: Connection, owner: Connection, two_companies: tuple[uuid.UUID, uuid.UUID], table: Table
) -> None:
    mine, other = two_companies
    name = sql.Identifier("taketurns", table.name)
    everything = sql.SQL("select t.*::text from {} t order by 1").format(name)
    before = owner.execute(everything).fetchall()
    with pytest.raises(psycopg.errors.InsufficientPrivilege, match="row-level security"), behind(role, mine):
        put(role, table, other)
    if "update" in walls.TABLES[table.name] and "update (" not in walls.TABLES[table.name]:
        with pytest.raises(psycopg.errors.InsufficientPrivilege, match="row-level security"), behind(role, mine):
            role.execute(sql.SQL("update {} set company_id = %s").format(name), [other])
    if "delete" in walls.TABLES[table.name]:
        with behind(role, mine):
            assert role.execute(sql.SQL("delete from {} where company_id = %s").format(name), [other]).rowcount == 0
    assert owner.execute(everything).fetchall() == before


def test_the_role_may_do_what_is_listed_and_nothing_else(role: Connection) -> None:
    tables = role.execute(
        "select c.relname, has_any_column_privilege(c.oid, 'select, insert, update, references')"
        " or has_table_privilege(c.oid, 'delete, truncate, trigger')"
        " from pg_class c where c.relnamespace = 'taketurns'::regnamespace and c.relkind in ('r', 'v', 'S')"
    )
    assert {name for name, is_known in tables if is_known} == set(walls.TABLES)
    functions = role.execute(
        "select proname, has_function_privilege(oid, 'execute') from pg_proc"
        " where pronamespace = 'taketurns'::regnamespace"
    ).fetchall()
    assert {name for name, may in functions if may} == walls.FUNCTIONS
    assert {name for name, may in functions if not may} > {"claim", "settle", "rescue", "park", "prune", "heal_turns"}


@pytest.mark.parametrize(
    "statement",
    [
        "select taketurns.claim(gen_random_uuid(), '{default}', 10, gen_random_uuid())",
        "select taketurns.settle('{}', '{}', '{}', '{}', '{}', '{}', '{}')",
        "select taketurns.prune('1 day'::interval, '1 day'::interval, '1 day'::interval, 10)",
        "select * from taketurns.workers",
        "select * from taketurns.turns",
        "select * from taketurns.rotations",
        "select * from taketurns.budgets",
        "select * from taketurns.task_types",
        "update taketurns.companies set weight = 100",
        "create table taketurns.mine ()",
        "alter table taketurns.tasks disable row level security",
    ],
)
def test_what_is_not_a_companys_business_is_refused(role: Connection, statement: str) -> None:
    with pytest.raises(psycopg.errors.InsufficientPrivilege):
        role.execute(statement.encode())


def test_the_role_cannot_become_the_owner(role: Connection, owner: Connection) -> None:
    with pytest.raises(psycopg.errors.InsufficientPrivilege):
        role.execute(sql.SQL("set role {}").format(sql.Identifier(owner.info.user)))


def test_to_switch_row_security_off_is_to_see_nothing(
    role: Connection, two_companies: tuple[uuid.UUID, uuid.UUID]
) -> None:
    role.execute("set row_security to off")
    with pytest.raises(psycopg.errors.InsufficientPrivilege, match="row-level security"):
        role.execute("select * from taketurns.tasks")


def test_a_temporary_table_does_not_stand_in_for_one_of_the_cell(
    role: Connection, two_companies: tuple[uuid.UUID, uuid.UUID]
) -> None:
    role.execute("create temporary table companies (id uuid, slug text)")
    role.execute("insert into pg_temp.companies values (%s, 'mine')", [uuid.uuid4()])
    assert role.execute("select taketurns.company_of_slug('mine')").fetchone() == (None,)


def test_how_far_the_rotation_is_is_told_of_queues_where_the_company_stands(
    role: Connection, owner: Connection, two_companies: tuple[uuid.UUID, uuid.UUID]
) -> None:
    lines = "select queue from taketurns.lines where company_id = %s"
    ((queue,),) = owner.execute(lines, two_companies[:1]).fetchall()
    for name in (queue, "secret"):
        owner.execute("insert into taketurns.rotations (queue, place) values (%s, 7)", [name])
    with behind(role, two_companies[0]):
        assert role.execute("select queue, place from taketurns.rotations").fetchall() == [(queue, 7)]


def test_a_look_up_behind_the_wall_is_by_index(role: Connection, owner: Connection) -> None:
    owner.execute(
        "insert into taketurns.tasks"
        " (company_id, id, type, queue, priority, run_after, max_retries, payload, created_at)"
        " select gen_random_uuid(), gen_random_uuid(), 'work', 'default', 5, now(), 5, '{}', now()"
        " from generate_series(1, 20000)"
    )
    owner.execute("analyze taketurns.tasks")
    with behind(role, uuid.uuid4()):
        for condition in ("true", f"id = '{uuid.uuid4()}'", f"company_id = '{uuid.uuid4()}'"):
            lines = role.execute(f"explain (costs off) select * from taketurns.tasks where {condition}".encode())
            plan = "\n".join(line for (line,) in lines)
            assert "Seq Scan" not in plan
            assert f"current_setting('{COMPANY}'::text, true)" in plan.split("Index Cond:")[1] or "One-Time" in plan


# Whole verbs behind the wall, and the connections that they come by.


@pytest.fixture
async def walled(database_url: str, company_url: str) -> AsyncIterator[Database]:
    database = Database(database_url, pool_size=2, companies=Database(company_url, pool_size=2))
    await database.open()
    yield database
    await database.close()


@pytest.fixture
async def acme(walled: Database) -> Company:
    return await directory.create(walled, name="Acme", slug="acme")


@pytest.fixture
async def zeta(walled: Database) -> Company:
    return await directory.create(walled, name="Zeta", slug="zeta")


async def test_a_database_of_a_company_is_named_by_its_id_or_its_slug(
    walled: Database, acme: Company, zeta: Company
) -> None:
    broker = PostgresBroker(walled)
    for company in (acme, zeta):
        await broker.enqueue(company.slug, [TASK])
    await broker.notifier.flush()
    for named in (acme.id, str(acme.id), "acme"):
        assert await walled.of(named).fetch(select(Task.company_id)) == [(acme.id,)]
        async with walled.of(named).transaction() as connection:
            cursor = await connection.execute("select company_id from taketurns.tasks")
            assert await cursor.fetchall() == [(acme.id,)]
    for unknown in (uuid.uuid4(), "nobody", "", "9" * 36):
        assert await walled.of(unknown).fetch(select(Task.company_id)) == []
    assert len(await walled.fetch(select(Task.company_id))) == 2


async def test_the_verbs_of_a_company_move_its_tasks_and_no_others(
    walled: Database, acme: Company, zeta: Company
) -> None:
    broker = PostgresBroker(walled)
    ((mine,), (other,)) = [await broker.enqueue(company.slug, [TASK]) for company in (acme, zeta)]
    await broker.watch(acme.id, mine.task_id, seconds=10)
    assert await broker.cancel("acme", mine.task_id) is Status.CANCELLED
    assert await broker.retry("acme", mine.task_id) is Status.CANCELLED
    assert await broker.cancel("acme", other.task_id) is None
    assert await broker.retry("acme", other.task_id) is None
    behind = walled.of(acme.id)
    assert await behind.call("cancel", "zeta", other.task_id, None) == [(None,)]
    with pytest.raises(UnknownCompany):
        await PostgresBroker(behind).enqueue("zeta", [TASK])
    assert await tasks.find(behind, "zeta", other.task_id) is None
    assert [task.task_id for task in await claim_all(broker)] == [mine.task_id, other.task_id]
    await broker.notifier.flush()


async def claim_all(broker: PostgresBroker) -> list[Any]:
    return sorted(await broker.claim(uuid.uuid4(), queues=["default"], batch=10), key=lambda task: task.created_at)


async def test_what_fails_leaves_the_connection_as_it_was(walled: Database, acme: Company) -> None:
    for _ in range(10):
        with pytest.raises(psycopg.errors.UndefinedTable):
            await walled.of(acme.id).run(b"select * from nowhere")
        assert await walled.of(acme.id).run(b"select slug from taketurns.companies") == [("acme",)]
    assert walled.companies is not None
    assert await walled.companies.run(b"select slug from taketurns.companies") == []


async def test_the_wall_holds_through_a_transaction_pooler(
    walled: Database, company_url: str, acme: Company, zeta: Company, open_directory: Path
) -> None:
    pooler = TransactionPooler(company_url, open_directory)
    clients = [Database(pooler.url, pool_size=1, prepare=False) for _ in range(3)]
    slugs = b"select slug from taketurns.companies"
    async with pooler.running():
        for client in clients:
            await client.open()
        databases = [Database(walled.url, companies=client) for client in clients]
        async with databases[0].of("acme").transaction() as connection:
            await (await connection.execute("select 1")).fetchone()
            waiting = [
                asyncio.create_task(databases[1].of("zeta").run(slugs)),
                asyncio.create_task(clients[2].run(slugs)),
            ]
            cursor = await connection.execute("select slug from taketurns.companies")
            assert await cursor.fetchall() == [("acme",)]
        assert [await one for one in waiting] == [[("zeta",)], []]
        for _ in range(20):
            answers = await asyncio.gather(
                databases[0].of("acme").run(slugs), databases[1].of(zeta.id).run(slugs), clients[2].run(slugs)
            )
            assert list(answers) == [[("acme",)], [("zeta",)], []]
        for client in clients:
            await client.close()


async def test_a_statement_for_a_company_is_one_round_trip(
    walled: Database, company_url: str, acme: Company, open_directory: Path
) -> None:
    pooler = TransactionPooler(company_url, open_directory)
    async with pooler.running():
        database = Database(walled.url, companies=Database(pooler.url, pool_size=1, prepare=False))
        await database.open()
        broker = PostgresBroker(database)
        ((made,), turns) = await counted(pooler, broker.enqueue("acme", [TASK]))
        assert turns == 1
        assert await counted(pooler, tasks.find(database.of("acme"), "acme", made.task_id)) == (ANY, 1)
        assert await counted(pooler, broker.cancel("acme", made.task_id)) == (Status.CANCELLED, 1)
        await broker.notifier.flush()
        await database.close()


async def counted(pooler: TransactionPooler, asked: Awaitable[Any]) -> tuple[Any, int]:
    before = pooler.turns
    return await asked, pooler.turns - before


# The role itself.


def test_to_grant_again_changes_nothing_and_takes_back_what_is_not_on_the_list(
    postgres_server: DatabaseServer, database_url: str, owner: Connection, role: Connection
) -> None:
    name = sql.Identifier(postgres_server.company_role)
    owner.execute(sql.SQL("grant all on taketurns.workers to {}").format(name))
    owner.execute(sql.SQL("grant all on all functions in schema taketurns to {}").format(name))
    postgres_server.grant(database_url)
    test_the_role_may_do_what_is_listed_and_nothing_else(role)


def test_a_role_for_which_no_wall_holds_is_refused(owner: Connection) -> None:
    with pytest.raises(RoleRefused, match="no wall holds"):
        walls.grant(owner, owner.info.user, schema="taketurns")


def test_an_owner_who_may_not_make_the_role_is_told_what_an_administrator_does(
    postgres_server: DatabaseServer, empty_database_url: str
) -> None:
    with psycopg.connect(conninfo(empty_database_url), autocommit=True) as connection:
        plain = f"taketurns_test_{uuid.uuid4().hex[:8]}"
        connection.execute(sql.SQL("create role {} login").format(sql.Identifier(plain)))
        try:
            database = sql.Identifier(connection.info.dbname)
            connection.execute(sql.SQL("grant create on database {} to {}").format(database, sql.Identifier(plain)))
            url = make_url(empty_database_url).set(username=plain).render_as_string(hide_password=False)
            schema.upgrade(url)
            with psycopg.connect(conninfo(url), autocommit=True) as plain_owner:
                with pytest.raises(RoleRefused, match='create role "not_there" login'):
                    walls.grant(plain_owner, "not_there", schema="taketurns")
                assert walls.grant(plain_owner, postgres_server.company_role, schema="taketurns") is False
                assert walls.gaps(plain_owner, schema="taketurns") == []
                plain_owner.execute(
                    "insert into taketurns.companies (id, slug, name) values (gen_random_uuid(), 'a', 'A')"
                )
                assert plain_owner.execute("select slug from taketurns.companies").fetchall() == [("a",)]
            behind = postgres_server.company_url(url)
            with psycopg.connect(conninfo(behind)) as role:
                assert role.execute("select slug from taketurns.companies").fetchall() == []
        finally:
            connection.execute(sql.SQL("drop owned by {} cascade").format(sql.Identifier(plain)))
            connection.execute(sql.SQL("drop role {}").format(sql.Identifier(plain)))


def test_cells_of_one_database_are_granted_one_by_one(
    postgres_server: DatabaseServer, empty_database_url: str, template_database: str
) -> None:
    for name in ("north", "south"):
        schema.upgrade(empty_database_url, schema=name)
    postgres_server.grant(empty_database_url, schema="north")
    with psycopg.connect(conninfo(postgres_server.company_url(empty_database_url)), autocommit=True) as role:
        assert role.execute("select north.company_of_slug('acme')").fetchone() == (None,)
        assert role.execute("select count(*) from north.companies").fetchone() == (0,)
        with pytest.raises(psycopg.errors.InsufficientPrivilege):
            role.execute("select count(*) from south.companies")


def test_many_databases_of_a_server_are_granted_at_once(
    postgres_server: DatabaseServer, template_database: str
) -> None:
    role = f"taketurns_test_{uuid.uuid4().hex[:8]}"

    def grant(url: str) -> bool:
        with psycopg.connect(conninfo(url), autocommit=True) as connection:
            return walls.grant(connection, role, schema="taketurns")

    with ExitStack() as databases, ThreadPoolExecutor() as threads:
        urls = [databases.enter_context(postgres_server.database(template=template_database)) for _ in range(3)]
        made = list(threads.map(grant, urls * 2))
        assert made.count(True) >= 1
    with psycopg.connect(postgres_server.address, autocommit=True) as connection:
        connection.execute(sql.SQL("drop role {}").format(sql.Identifier(role)))
