"""Charts over any window are made of few rows: of hours, minutes and tens of seconds, of some companies and of all."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from uuid import UUID

import pytest

from taketurns.companies import directory
from taketurns.history import rollups, series
from taketurns.history.series import EVERYBODY, SPANS, Sum
from taketurns.storage.database import Database
from tests.history.conftest import Life


@pytest.fixture
async def globex(database: Database) -> UUID:
    return (await directory.create(database, name="Globex", slug="globex")).id


async def tell(database: Database, company_id: UUID, *, ago: timedelta, completed: int = 0, failed: int = 0) -> None:
    """What a worker would have told then."""
    arguments = ("tasks", [company_id], [completed], [0], [failed], [f"{{0,{completed}}}"], 100)
    await database.call("tell_attempts", *arguments, datetime.now(UTC) - ago)


async def roll_up(database: Database) -> None:
    while (await database.call("roll_up", rollups.KEEP_TENS, rollups.KEEP_MINUTES, 1_000))[0][0]:
        pass


async def tell_a_story(life: Life, globex: UUID) -> None:
    """Acme completes 2 each time, Globex fails once, and not all of it is a minute or an hour yet."""
    for ago in (timedelta(days=2), timedelta(hours=5), timedelta(minutes=40), timedelta(minutes=3), timedelta(0)):
        await tell(life.database, life.company_id, ago=ago, completed=2)
        await tell(life.database, globex, ago=ago, failed=1)


@pytest.mark.parametrize(("name", "times"), [("15m", 2), ("1h", 3), ("24h", 4), ("7d", 5)])
@pytest.mark.parametrize("is_rolled_up", [True, False])
async def test_every_window_counts_each_attempt_once(
    life: Life, globex: UUID, name: str, times: int, is_rolled_up: bool
) -> None:
    await tell_a_story(life, globex)
    if is_rolled_up:
        await roll_up(life.database)
    told = await series.read(life.database, SPANS[name], [life.company_id, globex, EVERYBODY])
    assert told.total(life.company_id) == Sum(completed=2 * times, waits=[0, 2 * times])
    assert told.total(globex).failed == times
    assert (told.total(EVERYBODY).completed, told.total(EVERYBODY).failed) == (2 * times, times)
    assert told.companies == [life.company_id, globex]
    assert sum(step.attempts for step in told.of(EVERYBODY)) == 3 * times


@pytest.mark.parametrize("name", SPANS)
async def test_who_is_busiest_and_who_fails_is_known_without_a_look_at_all(
    life: Life, globex: UUID, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(series, "OF_EACH_PERIOD", 1)
    await tell_a_story(life, globex)
    await roll_up(life.database)
    found = await series.busiest(life.database, SPANS[name])
    assert found.most[0] == life.company_id
    assert found.failing == [globex]


async def test_a_window_begins_where_anything_is_known(life: Life) -> None:
    assert await series.begun_at(life.database) is None
    assert series.suiting(None) == SPANS["1h"]
    await tell(life.database, life.company_id, ago=timedelta(minutes=5), completed=1)
    begun = await series.begun_at(life.database)
    assert begun is not None
    assert series.suiting(begun) == SPANS["15m"]
    told = await series.read(life.database, SPANS["15m"], [life.company_id], begun=begun)
    assert told.starts[0] <= begun < told.starts[1]
    assert 290 < told.seconds < 330
    just_now = await series.read(life.database, SPANS["1h"], [life.company_id], begun=datetime.now(UTC))
    assert len(just_now.starts) == series.STEPS_LEAST + 1
    assert just_now.seconds < 60
    whole = await series.read(life.database, SPANS["15m"], [], begun=begun - timedelta(days=1))
    assert len(whole.starts) == 91


async def test_what_is_left_of_a_sum_is_never_below_nothing() -> None:
    everybody = Sum(completed=3, failed=1, waits=[1, 2])
    assert everybody.without(Sum(completed=1, failed=2, waits=[0, 3, 1])) == Sum(completed=2, waits=[1, 0, 0])
