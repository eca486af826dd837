"""The pytest plugin: an application's tests run its handlers on the real engine, at times of their choosing."""

import asyncio
import uuid
from datetime import timedelta
from typing import Any

import psycopg
import pytest
from psycopg.rows import tuple_row

from taketurns import Context, Fail, Retry, Status, Taketurns, UnknownCompany
from taketurns.testing.engine import Engine

pytest_plugins = ["pytester"]

tt = Taketurns()


@tt.task
async def send_invoice(invoice_id: int) -> str:
    return f"sent {invoice_id}"


@tt.task(retries=2)
def never(reason: str) -> None:
    raise ValueError(reason)


@tt.task
async def later(ctx: Context) -> int:
    if ctx.attempt < 3:
        raise Retry(after=3600)
    return ctx.attempt


@tt.task
async def rationed(ctx: Context) -> None:
    async with ctx.budget("provider", limit=1, per="1h"):
        await asyncio.sleep(0)


@tt.task(queue="follow-ups")
async def follow_up(ctx: Context, depth: int) -> None:
    if depth:
        await follow_up.enqueue(ctx.company_id, depth=depth - 1)


async def test_tasks_run_when_the_test_says_so(taketurns: Engine) -> None:
    await send_invoice.enqueue(company="acme", invoice_id=7)
    assert [task.status for task in taketurns.tasks()] == [Status.PENDING]
    assert taketurns.finished() == []
    report = await taketurns.drain()
    assert (report.claimed, report.completed) == (1, 1)
    (task,) = taketurns.finished(send_invoice)
    assert (task.status, task.result, task.payload) == (Status.COMPLETED, "sent 7", {"invoice_id": 7})


@pytest.mark.parametrize("round", [1, 2])
async def test_a_test_finds_nothing_of_the_one_before(taketurns: Engine, round: int) -> None:
    assert taketurns.tasks() == []
    await send_invoice.using(idempotency_key="the same").enqueue(company="acme", invoice_id=round)
    await taketurns.drain()
    assert [task.result for task in taketurns.finished()] == [f"sent {round}"]


async def test_a_delayed_task_waits_for_the_tests_clock(taketurns: Engine) -> None:
    await send_invoice.using(delay=timedelta(hours=2)).enqueue(company="acme", invoice_id=7)
    await taketurns.drain()
    await taketurns.advance(hours=1)
    await taketurns.drain()
    assert [task.status for task in taketurns.tasks()] == [Status.SCHEDULED]
    await taketurns.advance(timedelta(hours=1))
    assert [task.status for task in taketurns.tasks()] == [Status.PENDING]
    await taketurns.drain()
    (task,) = taketurns.finished(send_invoice)
    assert task.finished_at is not None
    assert timedelta(hours=2) <= task.finished_at - task.created_at < timedelta(hours=2, minutes=1)


async def test_a_task_enqueued_after_the_clock_moved_is_due_by_that_clock(taketurns: Engine) -> None:
    await taketurns.advance(days=30)
    await send_invoice.using(run_after=taketurns.now()).enqueue(company="acme", invoice_id=7)
    await taketurns.drain()
    assert len(taketurns.finished(send_invoice)) == 1


async def test_retries_come_as_the_clock_moves_on(taketurns: Engine) -> None:
    await later.enqueue(company="acme")
    for retry_count in (1, 2):
        report = await taketurns.drain()
        assert report.retried == 1
        assert [(task.status, task.retry_count) for task in taketurns.tasks()] == [(Status.SCHEDULED, retry_count)]
        await taketurns.advance(hours=1)
    await taketurns.drain()
    assert [(task.status, task.result) for task in taketurns.finished(later)] == [(Status.COMPLETED, 3)]


async def test_a_budget_frees_as_the_clock_moves_on(taketurns: Engine) -> None:
    for _ in range(3):
        await rationed.enqueue(company="acme")
    report = await taketurns.drain()
    assert (report.completed, report.deferred) == (1, 2)
    await taketurns.advance(hours=3)
    report = await taketurns.drain()
    assert (report.completed, report.deferred) == (1, 1)
    assert {task.retry_count for task in taketurns.tasks()} == {0}


async def test_a_task_that_fails_for_good_says_why(taketurns: Engine) -> None:
    await never.enqueue(company="acme", reason="out of paper")
    for _ in range(3):
        await taketurns.drain()
        await taketurns.advance(hours=1)
    (task,) = taketurns.finished("never")
    assert (task.status, task.retry_count) == (Status.FAILED, 2)
    assert task.error is not None
    assert task.error.startswith("ValueError: out of paper")


async def test_what_a_handler_enqueues_runs_too_whatever_its_queue(taketurns: Engine) -> None:
    await follow_up.enqueue(company="acme", depth=3)
    report = await taketurns.drain()
    assert report.completed == 4
    assert [task.payload["depth"] for task in taketurns.finished(follow_up)] == [3, 2, 1, 0]


async def test_handlers_of_several_applications_run_side_by_side(taketurns: Engine) -> None:
    other = Taketurns()

    @other.task
    def refuse() -> None:
        raise Fail("not today")

    await send_invoice.enqueue(company="acme", invoice_id=7)
    await refuse.enqueue(company="acme")
    await taketurns.drain()
    assert {task.type: task.status for task in taketurns.finished()} == {
        "send_invoice": Status.COMPLETED,
        "refuse": Status.FAILED,
    }


async def test_companies_take_turns(taketurns: Engine) -> None:
    await taketurns.company("acme", weight=2)
    await taketurns.company("idle", paused=True)
    for company in ("acme", "zeta", "idle"):
        await send_invoice.enqueue_many(company, [{"invoice_id": number} for number in range(4)])
    await taketurns.drain(concurrency=1)
    order = [task.company_id for task in taketurns.finished()]
    acme = await taketurns.company("acme")
    assert len(order) == 8
    assert [company == acme for company in order].count(True) == 4
    assert order[:6].count(acme) == 4
    await taketurns.company("idle", paused=False)
    await taketurns.drain()
    assert len(taketurns.finished()) == 12


async def test_a_company_that_is_named_by_an_id_must_exist(taketurns: Engine) -> None:
    with pytest.raises(UnknownCompany):
        await send_invoice.enqueue(company=uuid.uuid4(), invoice_id=7)


async def test_tasks_can_be_looked_at_and_cancelled(taketurns: Engine) -> None:
    task = await send_invoice.enqueue(company="acme", invoice_id=7)
    state = await tt.get("acme", task.id)
    assert state is not None
    assert (state.status, state.payload) == (Status.PENDING, {"invoice_id": 7})
    assert await tt.get(task.company_id, task.id) == state
    assert await tt.get("nobody", task.id) is None
    assert await tt.get("acme", uuid.uuid4()) is None
    assert await tt.cancel("acme", task.id) is Status.CANCELLED
    assert [task.status for task in taketurns.finished()] == [Status.CANCELLED]


async def test_the_callers_transaction_is_in_the_same_database(taketurns: Engine, taketurns_database_url: str) -> None:
    with psycopg.connect(taketurns_database_url, row_factory=tuple_row) as connection:
        await send_invoice.enqueue("acme", connection=connection, invoice_id=7)
        connection.rollback()
        send_invoice.enqueue_sync("acme", connection=connection, invoice_id=8)
        connection.commit()
    await taketurns.drain()
    assert [task.result for task in taketurns.finished()] == ["sent 8"]


def test_a_test_that_cannot_await_drains_all_the_same(taketurns: Engine) -> None:
    send_invoice.enqueue_sync(company="acme", invoice_id=7)
    asyncio.run(taketurns.drain())
    assert [task.result for task in taketurns.finished()] == ["sent 7"]


async def test_a_clock_does_not_go_back(taketurns: Engine) -> None:
    with pytest.raises(ValueError, match="only moves on"):
        await taketurns.advance(hours=-1)


async def test_a_handler_that_never_ends_enqueuing_itself_is_told_of(
    taketurns: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("taketurns.testing.engine.DRAIN_MOST", 5)
    await follow_up.enqueue(company="acme", depth=1_000)
    with pytest.raises(RuntimeError, match="does a handler enqueue itself"):
        await taketurns.drain()


def test_an_application_is_led_to_the_tests_database_and_back(taketurns_settings: Any) -> None:
    application = Taketurns(database_url="postgresql://production/shop")
    engine = Engine(taketurns_settings)
    with engine.in_use():
        assert application.settings.schema_name == taketurns_settings.schema_name
    assert application.settings.database_url == "postgresql://production/shop"


USERS_TESTS = """
    import pytest
    from taketurns import Taketurns

    tt = Taketurns()

    @tt.task(retries=5)
    async def send_invoice(invoice_id: int) -> str:
        return f"sent {invoice_id}"

    @pytest.mark.parametrize("number", [7, 8])
    async def test_invoice(taketurns, number):
        await send_invoice.enqueue(company="acme", invoice_id=number)
        await taketurns.drain()
        assert [task.result for task in taketurns.finished(send_invoice)] == [f"sent {number}"]
"""


USERS_SETTINGS = """
    [pytest]
    asyncio_mode = auto
    asyncio_default_fixture_loop_scope = function
    filterwarnings = error
"""


def users_run(pytester: pytest.Pytester) -> pytest.RunResult:
    pytester.makeini(USERS_SETTINGS)
    pytester.makepyfile(USERS_TESTS)
    return pytester.runpytest_subprocess("-p", "no:randomly")


def schemas(url: str) -> list[str]:
    with psycopg.connect(url) as connection:
        rows = connection.execute("select nspname from pg_namespace where nspname ~ 'taketurns'").fetchall()
    return [name for (name,) in rows]


def test_the_plugin_is_there_once_taketurns_is_installed(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch, empty_database_url: str
) -> None:
    monkeypatch.delenv("TAKETURNS_TEST_DATABASE_URL", raising=False)
    monkeypatch.setenv("TAKETURNS_DATABASE_URL", empty_database_url)
    users_run(pytester).assert_outcomes(passed=2)
    assert schemas(empty_database_url) == []


def test_without_a_database_a_server_is_started_and_thrown_away(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("TAKETURNS_TEST_DATABASE_URL", raising=False)
    monkeypatch.delenv("TAKETURNS_DATABASE_URL", raising=False)
    users_run(pytester).assert_outcomes(passed=2)
