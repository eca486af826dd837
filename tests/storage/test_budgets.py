"""A budget is kept whatever the interleaving, by rows and one clock; who is refused comes back when it is worth it."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from uuid import UUID

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from taketurns.brokers.postgres import PostgresBroker
from taketurns.engine import budget as rules
from taketurns.engine.budget import Budget
from taketurns.storage.budgets import PostgresBudgets
from taketurns.storage.database import Database
from tests.keeping import kept

NOON = datetime(2030, 1, 1, 12, tzinfo=UTC)
ACME, ZETA = UUID(int=1), UUID(int=2)
CONNECTIONS = 8


class Till:
    """Budgets by a clock that the test moves on, and the moments at which each of them was spent of."""

    def __init__(self, database: Database) -> None:
        self.database = database
        self.now = NOON
        self.spent: list[datetime] = []
        self.budgets = PostgresBudgets(database, now=lambda: self.now)

    async def spend(self, budget: Budget, *, company_id: UUID = ACME) -> float | None:
        now = self.now
        answer = await PostgresBudgets(self.database, now=lambda: now).spend(budget, company_id=company_id)
        if answer is None:
            self.spent.append(now)
        return answer

    async def refused(self, budget: Budget, *, company_id: UUID = ACME) -> float:
        answer = await self.spend(budget, company_id=company_id)
        assert answer is not None
        return answer

    def advance(self, seconds: float) -> None:
        self.now += timedelta(seconds=seconds)

    async def clear(self) -> None:
        self.now, self.spent = NOON, []
        async with self.database.connection() as connection:
            await connection.execute("delete from taketurns.budgets")


@pytest.fixture
async def till(database_url: str) -> AsyncIterator[Till]:
    database = Database(database_url, pool_size=CONNECTIONS)
    await database.open()
    yield Till(database)
    await database.close()


def mail(limit: int, per: str | float = "1h", *, is_per_company: bool = False) -> Budget:
    return rules.new("mail", limit=limit, per=per, cooldown="1m", is_per_company=is_per_company)


@pytest.mark.parametrize("seed", range(4))
async def test_no_window_has_more_than_the_limit_whatever_the_interleaving(till: Till, seed: int) -> None:
    """By the real clock. A call was made between its sending and its answer, so more than the limit of them that were
    sent and answered within one window are proof."""
    chance = random.Random(seed)
    budget = mail(limit := chance.randint(3, 12), per=(per := 0.4))
    budgets = PostgresBudgets(till.database)
    spent: list[tuple[float, float]] = []
    ends_at = time.monotonic() + 4 * per

    async def worker() -> None:
        while (sent_at := time.monotonic()) < ends_at:
            if await budgets.spend(budget, company_id=chance.choice([ACME, ZETA])) is None:
                spent.append((sent_at, time.monotonic()))

    await asyncio.gather(*(worker() for _ in range(CONNECTIONS)))
    assert len(spent) >= limit
    for first, _ in spent:
        assert sum(sent_at >= first and answered_at < first + per for sent_at, answered_at in spent) <= limit


async def test_as_many_as_the_limit_are_had_at_once_by_many(till: Till) -> None:
    budget = mail(20)
    answers = await asyncio.gather(*(PostgresBudgets(till.database).spend(budget, company_id=ACME) for _ in range(64)))
    assert answers.count(None) == 20


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(limit=st.integers(1, 5), pauses=st.lists(st.floats(0, 6), min_size=1, max_size=30))
async def test_a_call_is_refused_when_its_window_is_full_and_only_then(
    till: Till, limit: int, pauses: list[float]
) -> None:
    """But for a sixty-fourth of the window: calls of that time are kept as one."""
    await till.clear()
    budget = mail(limit, per=10.0)
    reach = timedelta(seconds=10.0 * (1 + 1 / 64))
    for pause in pauses:
        till.advance(pause)
        if await till.spend(budget) is not None:
            assert sum(moment > till.now - reach for moment in till.spent) >= limit
        assert sum(moment > till.now - timedelta(seconds=10) for moment in till.spent) <= limit


async def test_who_is_refused_is_told_a_time_at_which_there_is_room(till: Till) -> None:
    budget = mail(3)
    for _ in range(3):
        assert await till.spend(budget) is None
        till.advance(60)
    seconds = await till.refused(budget)
    assert 3600 - 180 <= seconds <= 3600 - 180 + 120
    till.advance(seconds)
    assert await till.spend(budget) is None


# Fault 122
async def test_a_crowd_comes_back_at_the_pace_of_the_budget_and_never_before_it_frees(till: Till) -> None:
    budget = mail(10, per=100.0)
    for _ in range(10):
        await till.spend(budget)
    waits = [await till.refused(budget) for _ in range(200)]
    assert min(waits) >= 100
    assert all(100 + 10 * place <= wait <= 101 + 10 * place for place, wait in enumerate(waits))
    assert len(set(waits)) == 200


async def test_a_company_with_few_tasks_does_not_wait_behind_one_with_many(till: Till) -> None:
    budget = mail(10, per=100.0)
    for _ in range(10):
        await till.spend(budget)
    for _ in range(50):
        await till.refused(budget, company_id=ACME)
    assert await till.refused(budget, company_id=ZETA) <= 101


async def test_a_line_longer_than_a_day_is_spread_over_it(till: Till) -> None:
    budget = mail(1, per="20h")
    await till.spend(budget)
    waits = [await till.refused(budget) for _ in range(20)]
    day, window, apart = 86_400, 20 * 3600, 2 * 3600
    assert all(window <= wait <= window + day + apart for wait in waits)
    assert len(set(waits)) == 20


async def test_companies_have_budgets_of_their_own_when_it_says_so(till: Till) -> None:
    budget = mail(1, is_per_company=True)
    assert [await till.spend(budget, company_id=company) for company in (ACME, ZETA)] == [None, None]
    await till.refused(budget, company_id=ACME)
    assert await till.spend(mail(1)) is None


async def test_the_newest_limit_counts(till: Till) -> None:
    for _ in range(4):
        assert await till.spend(mail(4)) is None
    assert await till.spend(mail(5)) is None
    await till.refused(mail(2))
    assert await till.spend(mail(6)) is None


@pytest.mark.parametrize(
    ("wait", "cools"),
    [
        (30.0, 30),
        (-5.0, rules.COOLDOWN_SECONDS_LEAST),
        (1e9, rules.COOLDOWN_SECONDS_MOST),
        (NOON + timedelta(minutes=2), 120),
        (NOON - timedelta(days=2), rules.COOLDOWN_SECONDS_LEAST),
        (datetime(9999, 12, 31, tzinfo=UTC), rules.COOLDOWN_SECONDS_MOST),
    ],
)
async def test_nobody_spends_while_a_budget_cools_down(till: Till, wait: rules.Wait, cools: float) -> None:
    """Fault 176."""
    budget = mail(1000, per=100.0)
    assert await till.budgets.cool_down(budget, wait, company_id=ACME) == pytest.approx(cools, abs=0.02)
    till.advance(cools - 0.5)
    assert await till.refused(budget, company_id=ZETA) >= 0.5
    till.advance(0.6)
    assert await till.spend(budget) is None


async def test_a_shorter_cooldown_does_not_end_a_longer_one(till: Till) -> None:
    budget = mail(1000, per=100.0)
    await till.budgets.cool_down(budget, 60.0, company_id=ACME)
    assert await till.budgets.cool_down(budget, 5.0, company_id=ACME) >= 60


async def test_a_budget_that_nobody_spends_is_forgotten(till: Till) -> None:
    await till.spend(mail(1))
    await till.refused(mail(1), company_id=ZETA)
    broker = PostgresBroker(till.database)
    keep = timedelta(days=1)
    for hours, rows in ((0.9, 2), (3, 0)):
        at = NOON + timedelta(hours=hours)
        await broker.prune(kept(keep), at=at)
        async with till.database.connection() as connection:
            cursor = await connection.execute("select count(*) from taketurns.budgets")
            assert await cursor.fetchall() == [(rows,)]
