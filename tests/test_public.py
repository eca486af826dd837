"""The public door: what `taketurns` exports, and what a program does with it."""

import asyncio
import enum
import inspect
import sqlite3
import subprocess
import sys
import uuid
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import Any

import psycopg
import pytest
import sqlalchemy
from psycopg.rows import dict_row
from sqlalchemy.ext.asyncio import AsyncSession, create_async_engine
from sqlalchemy.orm import Session, scoped_session, sessionmaker

import taketurns
from taketurns import (
    Backoff,
    ConfigurationError,
    Context,
    Handler,
    IdempotencyConflict,
    InvalidOption,
    InvalidPayload,
    Status,
    Taketurns,
    Unavailable,
    UniqueKeyTaken,
    UnknownCompany,
)
from taketurns.engine import limits
from taketurns.engine.errors import Busy

ACME = uuid.UUID("01890000-0000-7000-8000-000000000001")


class Colour(enum.Enum):
    RED = "red"


@dataclass
class Line:
    product: str
    amount: int = 1


@pytest.fixture
async def tt(database_url: str) -> AsyncIterator[Taketurns]:
    with psycopg.connect(database_url, autocommit=True) as connection:
        connection.execute(
            "insert into taketurns.companies (id, slug, name) values (%s, 'acme', 'Acme'), (%s, 'zeta', 'Zeta')",
            [ACME, uuid.uuid4()],
        )
    async with Taketurns(database_url=database_url) as application:
        yield application


@pytest.fixture
def stored(database_url: str) -> Callable[[], list[dict[str, Any]]]:
    """Every task there is, as another connection sees them."""

    def tasks() -> list[dict[str, Any]]:
        with psycopg.connect(database_url, row_factory=dict_row) as connection:
            return connection.execute(
                "select t.*, extract(epoch from t.run_after - t.created_at)::float as delay"
                " from taketurns.tasks t order by t.id"
            ).fetchall()

    return tasks


@dataclass
class Ledger:
    """A table of the caller's own beside the tasks, and the notices that workers would hear."""

    connection: psycopg.Connection[Any]

    def invoices(self) -> list[int]:
        return [number for (number,) in self.connection.execute("select id from public.invoices order by id")]

    def notices(self) -> list[str]:
        """What was told until here: the last is a notice of this connection's own."""
        self.connection.execute("notify \"taketurns.tasks\", 'the end'")
        told = [notice.payload for notice in self.connection.notifies(timeout=10, stop_after=1)]
        assert told[-1] == "the end"
        return told[:-1]


@pytest.fixture
def ledger(database_url: str) -> Iterator[Ledger]:
    with psycopg.connect(database_url, autocommit=True) as connection:
        connection.execute("create table public.invoices (id integer primary key)")
        connection.execute('listen "taketurns.tasks"')
        yield Ledger(connection)


Stored = Callable[[], list[dict[str, Any]]]
Greeter = Handler[..., ..., str]


def greeter(application: Taketurns) -> Greeter:
    def greet(ctx: Context, name: str) -> str:
        return f"{name}, attempt {ctx.attempt}"

    return application.task(greet)


# What is exported.


def test_all_is_what_is_exported() -> None:
    assert sorted(taketurns.__all__) == taketurns.__all__
    public = {name for name in dir(taketurns) if not name.startswith("_")}
    assert set(taketurns.__all__) <= public
    for name in taketurns.__all__:
        assert getattr(taketurns, name).__name__ == name
    with pytest.raises(AttributeError, match="no attribute 'Tasks'"):
        taketurns.Tasks  # noqa: B018


@pytest.mark.parametrize(
    ("opened", "heavy"),
    [
        (
            "import taketurns; taketurns.Taketurns, taketurns.Retry",
            {"alembic", "fastapi", "psycopg", "pydantic_settings", "sqlalchemy", "uvicorn"},
        ),
        ("from taketurns import assembly; assembly.serve_worker", {"alembic", "fastapi", "starlette", "uvicorn"}),
        ("from taketurns.cli import heartbeats, keys, operations, pausing, why, workers", {"alembic", "fastapi"}),
        ("from taketurns.cli import demo, examination, up", {"fastapi", "starlette"}),
    ],
    ids=["the door", "a worker", "commands", "what looks after the others"],
)
def test_what_opens_comes_without_the_heavy_rooms(opened: str, heavy: set[str]) -> None:
    program = f"import sys; {opened}; print(*sys.modules)"
    loaded = subprocess.run([sys.executable, "-c", program], check=True, capture_output=True, text=True)
    assert heavy.isdisjoint(loaded.stdout.split())


# A handler.


async def test_a_registered_function_is_still_callable() -> None:
    tt = Taketurns()

    @tt.task
    def double(number: int) -> int:
        """Twice the number."""
        return 2 * number

    @tt.task(name="halve", retries=2, timeout=timedelta(seconds=90), queue="slow", priority=7)
    async def half(number: int) -> float:
        return number / 2

    assert double(4) == 8
    assert await half(4) == 2
    assert double.__doc__ == "Twice the number."
    assert double.__name__ == "double"
    assert repr(half) == "<handler of 'halve'>"


def test_what_is_said_of_a_type_is_what_its_tasks_have() -> None:
    tt = Taketurns()

    @tt.task(name="halve", retries=2, timeout=timedelta(seconds=90), queue="slow", priority=7, backoff=Backoff(1))
    async def half(number: int) -> float:
        return number / 2

    assert tt.registry.names == ["halve"]
    assert (half.type.max_retries, half.type.timeout_seconds, half.type.queue) == (2, 90.0, "slow")
    assert (half.type.priority, half.type.backoff) == (7, Backoff(1))


@pytest.mark.parametrize("name", ["company", "session", "connection"])
def test_a_parameter_that_enqueue_takes_itself_is_refused(name: str) -> None:
    namespace: dict[str, Any] = {}
    exec(f"def handler({name}: str): ...", namespace)  # noqa: S102
    with pytest.raises(ConfigurationError, match=f"cannot be called '{name}'"):
        Taketurns().task(namespace["handler"])


# Enqueuing.


async def test_a_task_is_enqueued_with_the_options_of_its_type(tt: Taketurns, stored: Stored) -> None:
    handler = greeter(tt)
    task = await handler.enqueue(company="acme", name="Ada")
    assert (task.company_id, task.status, task.replayed) == (ACME, Status.PENDING, False)
    (row,) = stored()
    assert (row["id"], row["type"], row["payload"]) == (task.id, "greet", {"name": "Ada"})
    assert (row["queue"], row["priority"], row["max_retries"], row["timeout_seconds"]) == ("default", 5, 5, None)


async def test_a_company_is_named_by_its_slug_or_its_id(tt: Taketurns, stored: Stored) -> None:
    handler = greeter(tt)
    for company in ("acme", ACME, str(ACME)):
        await handler.enqueue(company=company, name="Ada")
    assert [row["company_id"] for row in stored()] == [ACME, ACME, ACME]


async def test_using_says_how_one_task_is_to_be_run(tt: Taketurns, stored: Stored) -> None:
    handler = greeter(tt)
    later = handler.using(priority=0, queue="fast", retries=1, timeout=2.5).using(delay=timedelta(minutes=1))
    assert (await later.enqueue(company="acme", name="Ada")).status is Status.SCHEDULED
    await handler.enqueue(company="acme", name="Bob")
    first, second = stored()
    assert (first["queue"], first["priority"], first["max_retries"]) == ("fast", 0, 1)
    assert (first["timeout_seconds"], first["delay"]) == (2.5, 60.0)
    assert (second["queue"], second["priority"], second["delay"]) == ("default", 5, 0.0)


async def test_tags_and_a_unique_key_are_said_with_using(tt: Taketurns, stored: Stored) -> None:
    handler = greeter(tt).using(tags=["eu", "vip"], unique_key="ada", unique_for=timedelta(hours=1))
    first = await handler.enqueue(company="acme", name="Ada")
    assert [(row["tags"], row["unique_key"]) for row in stored()] == [(["eu", "vip"], "ada")]
    with pytest.raises(UniqueKeyTaken):
        await handler.enqueue(company="acme", name="Ada")
    returning = handler.using(unique_key="ada", on_conflict="return")
    assert await returning.enqueue(company="acme", name="Ada") == replace(first, status=None, held=True)
    state = await tt.get("acme", first.id)
    assert state is not None
    assert (state.tags, state.unique_key) == (("eu", "vip"), "ada")


async def test_what_replaces_another_has_a_transaction_of_its_own(
    tt: Taketurns, database_url: str, stored: Stored
) -> None:
    handler = greeter(tt).using(unique_key="ada", on_conflict="replace")
    async with psycopg_async_connection(database_url) as holder:
        with pytest.raises(InvalidOption):
            await handler.enqueue(company="acme", name="Ada", **holder)
    assert stored() == []
    await handler.enqueue(company="acme", name="Ada")
    await handler.enqueue(company="acme", name="Bob")
    assert [row["stopped_as"] for row in stored()] == ["cancelled", None]


async def test_a_task_waits_for_the_moment_it_is_given(tt: Taketurns, stored: Stored) -> None:
    moment = datetime(2100, 1, 1, tzinfo=UTC)
    task = await greeter(tt).using(run_after=moment).enqueue(company="acme", name="Ada")
    assert task.status is Status.SCHEDULED
    assert [row["run_after"] for row in stored()] == [moment]


@pytest.mark.parametrize(
    ("options", "field"),
    [
        ({"priority": 10}, "priority"),
        ({"priority": True}, "priority"),  # fault 012
        ({"priority": "1"}, "priority"),
        ({"retries": 1.5}, "max_retries"),
        ({"run_after": datetime(9999, 12, 31, tzinfo=UTC)}, "run_after"),
        ({"queue": "a b"}, "queue"),
        ({"retries": -1}, "max_retries"),
        ({"timeout": 0}, "timeout_seconds"),
        ({"delay": -1}, "delay_seconds"),
        ({"delay": float("nan")}, "delay_seconds"),
        ({"run_after": datetime(2100, 1, 1)}, "run_after"),  # noqa: DTZ001
        ({"run_after": datetime(2100, 1, 1, tzinfo=UTC), "delay": 1}, "delay"),
        ({"idempotency_key": "  "}, "idempotency_key"),  # fault 024
        ({"idempotency_key": "x" * 256}, "idempotency_key"),
        ({"idempotency_key": "a\tb"}, "idempotency_key"),
        ({"tags": ["a b"]}, "tags"),
        ({"tags": ["a", "a"]}, "tags"),
        ({"tags": "eu"}, "tags"),
        ({"tags": map(str, range(11))}, "tags"),
        ({"unique_key": ""}, "unique_key"),
        ({"unique_for": 60}, "unique_for"),
        ({"unique_key": "k", "unique_for": 0}, "unique_for"),
        ({"unique_key": "k", "on_conflict": "ignore"}, "on_conflict"),
    ],
)
def test_an_option_out_of_bounds_is_refused_by_name(options: dict[str, Any], field: str) -> None:
    with pytest.raises(InvalidOption) as refusal:
        greeter(Taketurns()).using(**options)
    assert refusal.value.field == field


async def test_what_python_holds_goes_out_as_json_and_comes_back(tt: Taketurns, stored: Stored) -> None:
    received: list[Any] = []

    @tt.task
    def order(
        id: uuid.UUID, at: datetime, colour: Colour, lines: list[Line], tags: set[str], note: str = "none"
    ) -> None:
        received.extend([id, at, colour, lines, tags, note])

    at = datetime(2030, 5, 6, 7, 8, 9, tzinfo=UTC)
    await order.enqueue(company="acme", id=ACME, at=at, colour=Colour.RED, lines=[Line("tea", 2)], tags={"x"})
    (row,) = stored()
    assert row["payload"] == {
        "id": str(ACME),
        "at": "2030-05-06T07:08:09Z",
        "colour": "red",
        "lines": [{"product": "tea", "amount": 2}],
        "tags": ["x"],
    }
    order.type.handler(**order.type.validate(row["payload"]))
    assert received == [ACME, at, Colour.RED, [Line("tea", 2)], {"x"}, "none"]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({}, "name: Field required"),
        ({"name": 7}, "name: Input should be a valid string"),
        ({"name": "Ada", "age": 7}, "age: Extra inputs are not permitted"),
        ({"name": "a\0b"}, "name: must not contain the character"),
        ({"name": "x" * limits.PAYLOAD_BYTES}, "payload: .* bytes of JSON"),
    ],
)
async def test_a_payload_that_does_not_fit_is_refused_before_anything_is_sent(
    arguments: dict[str, Any], words: str
) -> None:
    nowhere = Taketurns(database_url="postgresql://127.0.0.1:1/nowhere")
    with pytest.raises(InvalidPayload, match=words):
        await greeter(nowhere).enqueue("acme", **arguments)


async def test_a_number_that_json_does_not_have_is_refused(tt: Taketurns) -> None:
    @tt.task
    def measure(value: float | None) -> None: ...

    with pytest.raises(InvalidPayload, match="value: must be a finite number"):
        await measure.enqueue(company="acme", value=float("nan"))


async def test_arguments_without_names_are_refused(tt: Taketurns, stored: Stored) -> None:
    handler: Any = greeter(tt)
    for positional in (["Ada"], [None, None, "Ada"]):
        with pytest.raises(TypeError, match="by name"):
            await handler.enqueue("acme", *positional)
    assert stored() == []


@pytest.mark.parametrize("company", ["nobody", "", "Nobody", "no\x00body", "\ud800"])
async def test_an_unknown_company_is_told(tt: Taketurns, company: str) -> None:
    with pytest.raises(UnknownCompany, match="there is no company"):
        await greeter(tt).enqueue(company=company, name="Ada")
    assert await tt.get(company, uuid.uuid4()) is None
    assert await tt.cancel(company, uuid.uuid4()) is None


async def test_a_database_that_is_away_is_told() -> None:
    async with Taketurns(database_url="postgresql://127.0.0.1:1/nowhere") as tt:
        tt.settings.pool_timeout = 0.2
        with pytest.raises(Unavailable):
            await greeter(tt).enqueue(company="acme", name="Ada")


# Once for a key.


async def test_a_key_makes_one_task_for_one_request(tt: Taketurns, stored: Stored) -> None:
    keyed = greeter(tt).using(idempotency_key="order-7")
    task = await keyed.enqueue(company="acme", name="Ada")
    again = await asyncio.gather(*(keyed.enqueue(company="acme", name="Ada") for _ in range(20)))
    assert {(other.id, other.replayed, other.status) for other in again} == {(task.id, True, None)}
    assert len(stored()) == 1


async def test_a_key_does_not_serve_two_requests(tt: Taketurns, stored: Stored) -> None:  # fault 028
    keyed = greeter(tt).using(idempotency_key="order-7")
    await keyed.enqueue(company="acme", name="Ada")
    with pytest.raises(IdempotencyConflict, match=r"^the idempotency key was used before"):
        await keyed.enqueue(company="acme", name="Bob")
    with pytest.raises(IdempotencyConflict):
        await keyed.using(priority=1).enqueue(company="acme", name="Ada")
    other = await keyed.enqueue(company="zeta", name="Bob")
    assert not other.replayed
    assert len(stored()) == 2


# Many at once.


async def test_many_are_enqueued_in_order(tt: Taketurns, stored: Stored) -> None:
    tasks = await greeter(tt).enqueue_many("acme", [{"name": str(number)} for number in range(1_000)])
    assert [(row["id"], row["payload"]["name"]) for row in stored()] == [
        (task.id, str(number)) for number, task in enumerate(tasks)
    ]


async def test_many_are_enqueued_all_or_none(tt: Taketurns, stored: Stored) -> None:
    handler = greeter(tt)
    with pytest.raises(InvalidPayload):
        await handler.enqueue_many("acme", [{"name": "Ada"}, {"name": 7}])
    with pytest.raises(InvalidOption, match="at most 1,000"):
        await handler.enqueue_many("acme", ({"name": "Ada"} for _ in range(1_001)))
    with pytest.raises(InvalidOption, match="bytes together"):
        await handler.enqueue_many("acme", [{"name": "x" * 200_000}] * 50)
    with pytest.raises(InvalidOption, match="one task's"):
        await handler.using(idempotency_key="order-7").enqueue_many("acme", [{"name": "Ada"}] * 2)
    with pytest.raises(InvalidOption, match="as many as the tasks"):
        await handler.enqueue_many("acme", [{"name": "Ada"}] * 2, idempotency_keys=["a"])
    assert await handler.enqueue_many("acme", []) == []
    assert stored() == []


async def test_each_of_many_has_its_own_key(tt: Taketurns, stored: Stored) -> None:
    handler = greeter(tt)
    payloads = [{"name": "Ada"}, {"name": "Bob"}]
    await handler.enqueue_many("acme", payloads, idempotency_keys=["a", None])
    again = await handler.enqueue_many("acme", payloads, idempotency_keys=["a", "b"])
    assert [task.replayed for task in again] == [True, False]
    with pytest.raises(IdempotencyConflict) as conflict:
        await handler.enqueue_many("acme", payloads, idempotency_keys=["c", "a"])
    assert conflict.value.positions == (1,)
    assert len(stored()) == 3


# Without await.


def test_a_program_without_a_loop_enqueues_too(database_url: str, stored: Stored, tt: Taketurns) -> None:
    handler = greeter(tt)
    first = handler.enqueue_sync(company="acme", name="Ada")
    second, third = handler.enqueue_many_sync("acme", [{"name": "Bob"}, {"name": "Cyd"}])
    assert [row["id"] for row in stored()] == [first.id, second.id, third.id]
    with pytest.raises(UnknownCompany):
        handler.enqueue_sync(company="nobody", name="Ada")


FORGETFUL = """
import asyncio, os, sys
from taketurns import Taketurns

tt = Taketurns(database_url=sys.argv[1])

@tt.task
def greet(name: str) -> None: ...

async def main(queue):
    await greet.using(queue=queue).enqueue("acme", name="Ada")

asyncio.run(main("first"))
asyncio.run(main("second"))
greet.using(queue="third").enqueue_sync("acme", name="Ada")
if child := os.fork():
    os.waitpid(child, 0)
    greet.using(queue="fifth").enqueue_sync("acme", name="Ada")
else:
    greet.using(queue="fourth").enqueue_sync("acme", name="Ada")
    os._exit(0)
"""


def test_a_program_that_closes_nothing_ends_and_wakes_workers_all_the_same(
    database_url: str, tt: Taketurns, ledger: Ledger, stored: Stored
) -> None:
    ended = subprocess.run(
        [sys.executable, "-c", FORGETFUL, database_url],
        check=False,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert ended.returncode == 0, ended.stderr
    assert "pending" not in ended.stderr
    assert [row["queue"] for row in stored()] == ["first", "second", "third", "fourth", "fifth"]
    assert {"first", "second", "third", "fifth"} <= set(ledger.notices())


# In a transaction of the caller's.


@asynccontextmanager
async def psycopg_connection(url: str) -> AsyncIterator[dict[str, Any]]:
    with psycopg.connect(url, row_factory=dict_row) as connection:
        yield {"connection": connection}


@asynccontextmanager
async def psycopg_async_connection(url: str) -> AsyncIterator[dict[str, Any]]:
    async with await psycopg.AsyncConnection.connect(url) as connection:
        yield {"connection": connection}


@asynccontextmanager
async def sqlalchemy_connection(url: str) -> AsyncIterator[dict[str, Any]]:
    engine = sqlalchemy.create_engine(url)
    with engine.connect() as connection:
        yield {"connection": connection}
    engine.dispose()


@asynccontextmanager
async def sqlalchemy_async_connection(url: str) -> AsyncIterator[dict[str, Any]]:
    engine = create_async_engine(url)
    async with engine.connect() as connection:
        yield {"connection": connection}
    await engine.dispose()


@asynccontextmanager
async def session(url: str) -> AsyncIterator[dict[str, Any]]:
    engine = sqlalchemy.create_engine(url)
    with Session(engine) as session:
        yield {"session": session}
    engine.dispose()


@asynccontextmanager
async def thread_session(url: str) -> AsyncIterator[dict[str, Any]]:
    engine = sqlalchemy.create_engine(url)
    registry = scoped_session(sessionmaker(engine))
    yield {"session": registry}
    registry.remove()
    engine.dispose()


@asynccontextmanager
async def async_session(url: str) -> AsyncIterator[dict[str, Any]]:
    engine = create_async_engine(url)
    async with AsyncSession(engine) as session:
        yield {"session": session}
    await engine.dispose()


SYNC = [psycopg_connection, sqlalchemy_connection, session, thread_session]
ASYNC = [psycopg_async_connection, sqlalchemy_async_connection, async_session]
Opened = Callable[[str], AbstractAsyncContextManager[dict[str, Any]]]


async def done(value: Any) -> Any:
    return await value if inspect.isawaitable(value) else value


async def execute(holder: Any, statement: str) -> None:
    is_plain = isinstance(holder, psycopg.Connection | psycopg.AsyncConnection)
    await done(holder.execute(statement if is_plain else sqlalchemy.text(statement)))


@pytest.mark.parametrize("opened", SYNC + ASYNC)
async def test_a_task_commits_with_the_callers_transaction(
    opened: Opened, tt: Taketurns, database_url: str, ledger: Ledger, stored: Stored
) -> None:
    handler = greeter(tt)
    async with opened(database_url) as transaction:
        (holder,) = transaction.values()
        await execute(holder, "set search_path to public")
        await execute(holder, "insert into invoices values (7)")
        task = await handler.enqueue("acme", name="Ada", **transaction)
        later = await handler.using(delay=60, queue="slow").enqueue("acme", name="Bob", **transaction)
        assert (task.status, later.status) == (Status.PENDING, Status.SCHEDULED)
        assert (stored(), ledger.notices()) == ([], [])
        await done(holder.commit())
    assert [row["id"] for row in stored()] == [task.id, later.id]
    assert ledger.invoices() == [7]
    assert ledger.notices() == ["default"]


@pytest.mark.parametrize("opened", SYNC + ASYNC)
async def test_a_task_vanishes_with_the_callers_transaction(
    opened: Opened, tt: Taketurns, database_url: str, ledger: Ledger, stored: Stored
) -> None:
    handler = greeter(tt)
    async with opened(database_url) as transaction:
        (holder,) = transaction.values()
        await execute(holder, "insert into public.invoices values (7)")
        await handler.using(idempotency_key="order-7").enqueue("acme", name="Ada", **transaction)
        await handler.enqueue_many("acme", [{"name": "Bob"}, {"name": "Cyd"}], **transaction)
        await done(holder.rollback())
    assert (stored(), ledger.invoices(), ledger.notices()) == ([], [], [])
    assert not (await handler.using(idempotency_key="order-7").enqueue("acme", name="Ada")).replayed


@pytest.mark.parametrize("opened", SYNC + ASYNC)
async def test_a_refusal_leaves_the_callers_transaction_usable(
    opened: Opened, tt: Taketurns, database_url: str, ledger: Ledger, stored: Stored
) -> None:
    keyed = greeter(tt).using(idempotency_key="order-7")
    await keyed.enqueue("acme", name="Ada")
    async with opened(database_url) as transaction:
        (holder,) = transaction.values()
        for company in ("nobody", str(uuid.uuid4())):
            with pytest.raises(UnknownCompany):
                await keyed.enqueue(company, name="Ada", **transaction)
        with pytest.raises(IdempotencyConflict):
            await keyed.enqueue("acme", name="Bob", **transaction)
        assert (await keyed.enqueue("acme", name="Ada", **transaction)).replayed
        await execute(holder, "insert into public.invoices values (7)")
        await done(holder.commit())
    assert ledger.invoices() == [7]
    assert len(stored()) == 1


@pytest.mark.parametrize("opened", SYNC + ASYNC)
async def test_a_long_transaction_of_somebody_else_is_told_as_such(
    opened: Opened, tt: Taketurns, database_url: str, stored: Stored
) -> None:
    handler = greeter(tt)
    with psycopg.connect(database_url, autocommit=True) as owner, psycopg.connect(database_url) as long:
        owner.execute("alter function taketurns.join_rotation set lock_timeout = '50ms'")
        await handler.enqueue("acme", name="Ada", connection=long)
        async with opened(database_url) as transaction:
            (holder,) = transaction.values()
            with pytest.raises(Busy, match="roll back and try again"):
                await handler.enqueue("acme", name="Bob", **transaction)
            await done(holder.rollback())
            long.rollback()
            await handler.enqueue("acme", name="Bob", **transaction)
            await done(holder.commit())
    assert [row["payload"] for row in stored()] == [{"name": "Bob"}]


@pytest.mark.parametrize("opened", SYNC)
async def test_sync_code_enqueues_in_its_transaction(
    opened: Opened, tt: Taketurns, database_url: str, stored: Stored
) -> None:
    handler = greeter(tt)
    async with opened(database_url) as transaction:
        (holder,) = transaction.values()
        handler.enqueue_sync("acme", name="Ada", **transaction)
        holder.rollback()
        second = handler.enqueue_sync("acme", name="Bob", **transaction)
        third, _ = handler.enqueue_many_sync("acme", [{"name": "Cyd"}, {"name": "Dan"}], **transaction)
        holder.commit()
    assert [row["id"] for row in stored()][:2] == [second.id, third.id]
    assert len(stored()) == 3


@pytest.mark.parametrize("opened", ASYNC)
async def test_sync_code_cannot_use_an_async_transaction(opened: Opened, tt: Taketurns, database_url: str) -> None:
    async with opened(database_url) as transaction:
        with pytest.raises(InvalidOption, match="await `enqueue`"):
            greeter(tt).enqueue_sync("acme", name="Ada", **transaction)


async def test_what_holds_no_transaction_is_refused(tt: Taketurns, database_url: str) -> None:
    handler: Any = greeter(tt)
    with sqlite3.connect(":memory:") as other, pytest.raises(InvalidOption, match=r"not a sqlite3\.Connection"):
        await handler.enqueue("acme", connection=other, name="Ada")
    other.close()
    async with session(database_url) as one, psycopg_connection(database_url) as another:
        with pytest.raises(InvalidOption, match="one of the two"):
            await handler.enqueue("acme", name="Ada", **one, **another)


# What becomes of a task.


async def test_a_task_that_waits_can_be_cancelled(tt: Taketurns, stored: Stored) -> None:
    task = await greeter(tt).enqueue("acme", name="Ada")
    assert await tt.cancel("zeta", task.id) is None
    assert await tt.cancel("acme", task.id) is Status.CANCELLED
    assert [row["stopped_as"] for row in stored()] == ["cancelled"]


async def test_a_program_makes_a_pass(tt: Taketurns, stored: Stored) -> None:
    ran = []

    @tt.task
    async def work(number: int) -> None:
        ran.append(number)

    for number in range(3):
        await work.enqueue(company="acme", number=number)
    assert (await tt.run_once(limit=2)).completed == 2
    report = await asyncio.to_thread(tt.run_once_sync, drain=True)
    assert (report.claimed, report.completed) == (1, 1)
    assert sorted(ran) == [0, 1, 2]
