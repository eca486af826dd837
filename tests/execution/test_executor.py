"""Handlers run: async and sync, within their timeouts, whatever they do."""

import asyncio
import gc
import sys
import threading
import time
import weakref
from collections.abc import AsyncIterator, Callable
from contextvars import ContextVar
from typing import Any

import pytest
from pydantic_core import SchemaSerializer

from taketurns.engine.errors import Fail
from taketurns.engine.registry import Registry
from taketurns.engine.retry import Backoff
from taketurns.engine.task import Outcome, Report
from taketurns.execution import Attempt, Context, Executor, current
from taketurns.execution.executor import LINE_SECONDS
from tests.execution.tasks import claimed
from tests.waiting import PATIENCE, eventually


class Bench:
    """An executor, and a registry to fill."""

    def __init__(self) -> None:
        self.registry = Registry()
        self.executor = Executor(self.registry, threads=4, abandon_after_seconds=0.1)

    def add(self, handler: Callable[..., Any], **options: Any) -> None:
        self.registry.add(handler, name="work", context_type=Context, backoff=Backoff(jitter=0), **options)

    async def run(self, payload: str = "{}", **task: Any) -> Report:
        return await self.executor.execute(claimed(payload=payload, **task))

    def start(self, **task: Any) -> tuple[Attempt, asyncio.Future[Report]]:
        ended: asyncio.Future[Report] = asyncio.get_running_loop().create_future()
        attempt = self.executor.start(claimed(**task), lambda _, report: ended.set_result(report))
        return attempt, ended


@pytest.fixture
async def bench() -> AsyncIterator[Bench]:
    bench = Bench()
    yield bench
    bench.executor.close()


async def test_an_async_handler_is_given_its_payload(bench: Bench) -> None:
    async def greet(name: str, times: int = 1) -> str:
        return name * times

    bench.add(greet)
    assert (await bench.run('{"name": "Ada", "times": 2}')).result == '"AdaAda"'


async def test_a_sync_handler_runs_in_a_thread(bench: Bench) -> None:
    def where() -> str:
        return threading.current_thread().name

    bench.add(where)
    assert "handler-" in str((await bench.run()).result)


async def test_sync_handlers_run_at_once(bench: Bench) -> None:
    everybody = threading.Barrier(4)
    bench.add(lambda: everybody.wait(timeout=PATIENCE) >= 0)
    answers = await asyncio.gather(*(bench.run() for _ in range(4)))
    assert [answer.outcome for answer in answers] == [Outcome.COMPLETED] * 4


async def test_sync_handlers_beyond_the_threads_wait(bench: Bench) -> None:
    bench.add(lambda: threading.current_thread().name)
    answers = await asyncio.gather(*(bench.run() for _ in range(40)))
    assert all(answer.outcome is Outcome.COMPLETED for answer in answers)
    assert len({answer.result for answer in answers}) <= 4


async def test_whole_numbers_past_64_bits_stay_whole(bench: Bench) -> None:
    async def double(number: int) -> int:
        return 2 * number

    bench.add(double)
    assert (await bench.run('{"number": 18446744073709551616}')).result == "36893488147419103232"


async def test_a_handler_may_ask_for_its_context(bench: Bench) -> None:
    async def look(ctx: Context, name: str) -> list[Any]:
        return [ctx.attempt, ctx.retry_count, ctx.is_last_attempt, ctx is current(), name]

    bench.add(look)
    assert (await bench.run('{"name": "a"}', retry_count=5)).result == '[6,5,true,true,"a"]'


async def test_a_handler_may_go_on_with_the_trace_of_the_request(bench: Bench) -> None:
    trace = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"
    bench.add(lambda: current().traceparent)
    assert (await bench.run(traceparent=trace)).result == f'"{trace}"'


async def test_current_is_known_in_threads_too(bench: Bench) -> None:
    bench.add(lambda: current().type)
    assert (await bench.run()).result == '"work"'


async def test_current_outside_of_a_handler_says_so() -> None:
    with pytest.raises(LookupError, match="outside of a handler"):
        current()


TENANT: ContextVar[str] = ContextVar("tenant", default="nobody")


@pytest.mark.parametrize("is_async", [True, False])
async def test_what_a_handler_sets_in_its_context_is_not_seen_by_the_next(bench: Bench, is_async: bool) -> None:
    """Neither by one that is begun as soon as the first has ended, in the same breath."""

    def work(name: str) -> str:
        before = TENANT.get()
        TENANT.set(name)
        return before

    async def work_async(name: str) -> str:
        return work(name)

    bench.add(work_async if is_async else work)
    seen: list[str | None] = []
    ended = asyncio.Event()

    def done(_: Attempt, report: Report) -> None:
        seen.append(report.result)
        if len(seen) < 3:
            bench.executor.start(claimed(payload='{"name": "b"}'), done)
        else:
            ended.set()

    bench.executor.start(claimed(payload='{"name": "a"}'), done)
    await ended.wait()
    assert seen == ['"nobody"'] * 3


# Fault 078: rows that no release of ours would write.
@pytest.mark.parametrize("payload", ["null", "3", "[]", '"text"', '{"name": 3, "odd": 1}', "{", ""])
async def test_a_malformed_payload_fails_its_task_at_once(bench: Bench, payload: str) -> None:
    async def greet(name: str) -> None: ...

    bench.add(greet)
    answer = await bench.run(payload)
    assert answer.outcome is Outcome.FAILED
    assert answer.error


@pytest.mark.parametrize("seconds", [0.0, -1.0, float("nan"), float("-inf")])
async def test_a_malformed_timeout_fails_its_task_at_once(bench: Bench, seconds: float) -> None:
    bench.add(lambda: None)
    answer = await bench.run(timeout_seconds=seconds)
    assert (answer.outcome, str(answer.error)[:15]) == (Outcome.FAILED, "timeout_seconds")


@pytest.mark.parametrize("seconds", [float("inf"), 1e300])
async def test_a_boundless_timeout_is_none(bench: Bench, seconds: float) -> None:
    bench.add(lambda: None)
    assert (await bench.run(timeout_seconds=seconds)).outcome is Outcome.COMPLETED


async def test_an_unknown_type_fails_its_task(bench: Bench) -> None:
    answer = await bench.run(type="gone")
    assert (answer.outcome, answer.error) == (Outcome.FAILED, "no handler is known for type 'gone'; known types: none")


# Fault 095
@pytest.mark.parametrize("is_async", [True, False])
@pytest.mark.parametrize(
    "error", [SystemExit(0), SystemExit(3), KeyboardInterrupt(), GeneratorExit(), BaseException("odd")]
)
async def test_no_exception_of_a_handler_ends_more_than_its_attempt(
    bench: Bench, error: BaseException, is_async: bool
) -> None:
    def leave() -> None:
        raise error

    async def leave_async() -> None:
        raise error

    bench.add(leave_async if is_async else leave)
    answer = await bench.run()
    assert answer.outcome is Outcome.RETRY
    assert str(answer.error).startswith(type(error).__name__)


class Sour:
    """A result whose own code raises as it is written."""

    def __init__(self, error: BaseException) -> None:
        self._error = error

    @property
    def __pydantic_serializer__(self) -> SchemaSerializer:
        raise self._error


@pytest.mark.parametrize("error", [SystemExit(0), KeyboardInterrupt(), ValueError("sour")])
async def test_a_result_that_raises_as_it_is_written_ends_its_attempt(bench: Bench, error: BaseException) -> None:
    bench.add(lambda: Sour(error))
    answer = await bench.run()
    assert answer.outcome is Outcome.RETRY
    assert type(error).__name__ in str(answer.error) or "not JSON" in str(answer.error)


async def test_sys_exit_is_not_a_success(bench: Bench) -> None:
    bench.add(lambda: sys.exit(0))
    assert (await bench.run(retry_count=5)).outcome is Outcome.FAILED


# Fault 097 (a)
async def test_an_async_handler_past_its_timeout_is_cancelled(bench: Bench) -> None:
    stopped = asyncio.Event()

    async def wait() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            stopped.set()

    bench.add(wait)
    answer = await bench.run(timeout_seconds=0.05)
    assert (answer.outcome, str(answer.error)[:9]) == (Outcome.RETRY, "timed out")
    assert stopped.is_set()


# Faults 097 (b) and 098: no retry begins beside a handler that still runs.
async def test_a_sync_handler_past_its_timeout_is_told_and_reported_when_it_returns(bench: Bench) -> None:
    def wait(ctx: Context) -> str:
        assert ctx.cancelled.wait(timeout=PATIENCE)
        assert ctx.remaining_seconds is not None
        assert ctx.remaining_seconds <= 0
        return "late"

    bench.add(wait)
    answer = await bench.run(timeout_seconds=0.05)
    assert (answer.outcome, answer.result, str(answer.error)[:9]) == (Outcome.RETRY, None, "timed out")


# Fault 097 (d)
async def test_an_async_handler_that_swallows_its_cancellation_is_left_behind(bench: Bench) -> None:
    may_end = asyncio.Event()

    async def stubborn() -> None:
        while not may_end.is_set():
            try:
                await may_end.wait()
            except asyncio.CancelledError:
                continue

    bench.add(stubborn)
    answer = await bench.run(timeout_seconds=0.01)
    assert "does not stop" in str(answer.error)
    assert len(bench.executor.abandoned) == 1
    may_end.set()
    await eventually(lambda: not bench.executor.abandoned)


# Fault 099: each end has its own reason.
async def test_a_handlers_own_timeout_error_is_not_its_timeout(bench: Bench) -> None:
    async def impatient() -> None:
        async with asyncio.timeout(0.001):
            await asyncio.Event().wait()

    bench.add(impatient)
    answer = await bench.run(timeout_seconds=60)
    assert str(answer.error).startswith("TimeoutError")


async def test_a_handler_that_cancels_itself_has_failed(bench: Bench) -> None:
    async def odd() -> None:
        raise asyncio.CancelledError("of my own")

    bench.add(odd)
    answer = await bench.run()
    assert (answer.outcome, str(answer.error)[:28]) == (Outcome.RETRY, "CancelledError: of my own\n\n ")


async def test_a_cancelled_async_attempt_is_reported_so(bench: Bench) -> None:
    begun = asyncio.Event()

    async def wait() -> None:
        begun.set()
        await asyncio.Event().wait()

    bench.add(wait)
    attempt, ended = bench.start()
    await begun.wait()
    attempt.cancel()
    assert (await ended).outcome is Outcome.CANCELLED


async def test_an_attempt_may_be_cancelled_before_its_first_step(bench: Bench) -> None:
    called = []

    async def work() -> None:
        called.append(1)
        await asyncio.Event().wait()

    bench.add(work)
    attempt, ended = bench.start()
    attempt.cancel()
    assert (await ended).outcome is Outcome.CANCELLED
    assert sys.version_info >= (3, 12) or not called


async def test_a_cancelled_sync_attempt_ends_when_its_handler_does(bench: Bench) -> None:
    begun = threading.Event()

    def wait(ctx: Context) -> None:
        begun.set()
        assert ctx.cancelled.wait(timeout=PATIENCE)
        raise RuntimeError("stopped halfway")

    bench.add(wait)
    attempt, ended = bench.start()
    await asyncio.to_thread(begun.wait, 10)
    attempt.cancel()
    assert (await ended).outcome is Outcome.CANCELLED


async def test_a_decision_of_the_handler_counts_though_it_was_told_to_stop(bench: Bench) -> None:
    async def decide() -> None:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            raise Fail("gone") from None

    bench.add(decide)
    attempt, ended = bench.start()
    await asyncio.sleep(0)
    attempt.cancel()
    assert (await ended).outcome is Outcome.FAILED


async def test_cancelling_who_waits_cancels_the_attempt(bench: Bench) -> None:
    begun, stopped = asyncio.Event(), asyncio.Event()

    async def wait() -> None:
        begun.set()
        try:
            await asyncio.Event().wait()
        finally:
            stopped.set()

    bench.add(wait)
    waiting = asyncio.create_task(bench.run())
    await begun.wait()
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    await stopped.wait()


async def test_a_sync_handler_that_returns_a_coroutine_is_told_what_to_do(bench: Bench) -> None:
    async def inner() -> None: ...

    def outer() -> Any:
        return inner()

    bench.add(outer)
    assert "async def" in str((await bench.run()).error)


async def test_a_handler_may_use_asyncios_own_timeouts_and_groups(bench: Bench) -> None:
    async def work() -> int:
        async with asyncio.timeout(PATIENCE), asyncio.TaskGroup() as group:
            first = group.create_task(asyncio.sleep(0, 1))
            second = group.create_task(asyncio.sleep(0, 2))
        return first.result() + second.result()

    bench.add(work)
    assert (await bench.run(timeout_seconds=10)).result == "3"


# Fault 109
async def test_nothing_is_kept_of_an_attempt_that_has_ended(bench: Bench) -> None:
    async def work(fails: bool) -> None:
        if fails:
            raise ValueError("no")

    bench.add(work)
    kept: list[weakref.ref[Context]] = []

    def watched(fails: bool, ctx: Context) -> None:
        kept.append(weakref.ref(ctx))
        if fails:
            raise ValueError("no")

    bench.registry.add(watched, context_type=Context)
    gc.disable()
    try:
        for fails in ("true", "false"):
            await bench.run(f'{{"fails": {fails}}}', type="watched")
            await bench.run(f'{{"fails": {fails}}}', type="work")
        assert len(kept) == 2
        await eventually(lambda: all(reference() is None for reference in kept))
    finally:
        gc.enable()


async def test_handlers_that_do_not_wait_share_an_asyncio_task_and_one_that_waits_keeps_its_own(bench: Bench) -> None:
    ran_in: list[asyncio.Task[Any] | None] = []

    async def work(waits: bool) -> None:
        ran_in.append(asyncio.current_task())
        if waits:
            await asyncio.sleep(0)
            ran_in.append(asyncio.current_task())

    bench.add(work)
    quick, slow = '{"waits": false}', '{"waits": true}'

    await asyncio.gather(*(bench.run(payload) for payload in (quick, quick, slow, quick)))

    first, second, third, fourth, after_waiting = ran_in
    assert first is second is third is after_waiting
    assert fourth is not first


async def test_a_handler_keeps_its_context_while_others_run_between_its_waits(bench: Bench) -> None:
    seen: ContextVar[str] = ContextVar("seen")
    everybody = asyncio.Barrier(3)

    async def work(name: str) -> list[str]:
        seen.set(name)
        await everybody.wait()
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0):
                await asyncio.Event().wait()
        return [seen.get(), await asyncio.create_task(read()), str(current().task_id)]

    async def read() -> str:
        return seen.get()

    bench.add(work)
    tasks = {name: claimed(payload=f'{{"name": "{name}"}}') for name in ("a", "b", "c")}

    reports = await asyncio.gather(*map(bench.executor.execute, tasks.values()))

    assert [report.result for report in reports] == [
        f'["{name}","{name}","{task.task_id}"]' for name, task in tasks.items()
    ]


async def test_a_handler_that_cancels_its_asyncio_task_and_does_not_wait_costs_no_other(bench: Bench) -> None:
    async def work(cancels: bool) -> None:
        if cancels:
            task = asyncio.current_task()
            assert task is not None
            task.cancel()
            return
        await asyncio.sleep(0)

    bench.add(work)
    cancelling, other = '{"cancels": true}', '{"cancels": false}'

    reports = await asyncio.gather(*map(bench.run, (cancelling, other, cancelling, other)))

    assert [report.outcome for report in reports] == [Outcome.COMPLETED] * 4


async def test_the_loop_has_its_turn_however_many_handlers_do_not_wait(bench: Bench) -> None:
    loop_had_its_turn = asyncio.Event()
    waited: list[bool] = []

    async def work() -> None:
        until = time.monotonic() + LINE_SECONDS
        while time.monotonic() < until:
            pass
        waited.append(loop_had_its_turn.is_set())

    bench.add(work)
    running = [bench.start()[1] for _ in range(3)]
    await running[0]
    loop_had_its_turn.set()
    await asyncio.gather(*running)

    assert waited[-1]
