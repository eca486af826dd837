"""Pauses as operators set them: until a time, again, of companies that go, and beside a claim under way."""

from __future__ import annotations

import asyncio
from collections import Counter
from datetime import UTC, datetime, timedelta
from uuid import UUID

import pytest

from taketurns.companies import directory, pauses
from taketurns.storage.audit import Actor, ActorKind
from tests.brokers.postgres.cell import PostgresCell
from tests.brokers.postgres.connections import other_connection
from tests.waiting import eventually

NOON = datetime(2030, 1, 1, 12, tzinfo=UTC)
HOUR = timedelta(hours=1)
ADA = Actor(kind=ActorKind.OPERATOR, name="ada")


@pytest.fixture(autouse=True)
def companies(cell: PostgresCell) -> None:
    for slug in ("acme", "globex"):
        cell.add_company(slug)
    cell.add_lease(UUID(int=9))
    cell.connection.execute("update workers set types = '{work,mail}'")


async def pause(
    cell: PostgresCell,
    company: str | None = None,
    *,
    queue: str | None = None,
    type: str | None = None,
    until: datetime | None = None,
) -> None:
    assert await pauses.put(cell.broker.database, company, queue=queue, type=type, until=until)


async def lift(
    cell: PostgresCell, company: str | None = None, *, queue: str | None = None, type: str | None = None
) -> None:
    assert await pauses.lift(cell.broker.database, company, queue=queue, type=type)


def taken(cell: PostgresCell, batch: int = 100, *, at: datetime | None = None) -> dict[str, int]:
    return dict(Counter(turn.company for turn in cell.take(batch, at=at)))


async def test_pauses_are_over_at_their_time(cell: PostgresCell) -> None:
    cell.submit("acme", 2)
    cell.submit("globex", 2, type="mail")
    await pause(cell, "acme", queue="default", until=NOON)
    await pause(cell, type="mail", until=NOON)
    assert taken(cell, at=NOON - HOUR) == {}
    await cell.broker.park([], queues=["default"], at=NOON - HOUR)
    assert await cell.broker.unpark(at=NOON - HOUR) == 0
    assert cell.rows("select end_pauses(%s)", NOON - HOUR) == [(3600.0,)]
    assert taken(cell, at=NOON) == {"acme": 2}
    assert cell.rows("select end_pauses(%s)", NOON) == [(None,)]
    assert cell.rows("select from pauses") == []
    assert await cell.broker.unpark(at=NOON) == 2
    assert taken(cell, at=NOON) == {"globex": 2}


async def test_a_company_that_is_paused_until_a_time_goes_on_by_itself(cell: PostgresCell) -> None:
    cell.submit("acme", 2)
    database = cell.broker.database
    changed = await directory.change(database, "acme", {"paused_until": NOON}, by=ADA)
    assert changed is not None
    assert (changed.paused, changed.paused_until, changed.limits_set_by) == (True, NOON, "ada")
    assert taken(cell, at=NOON - HOUR) == {}
    cell.rows("select end_pauses(%s)", NOON)
    found = await directory.find(database, "acme")
    assert found is not None
    assert (found.paused, found.paused_until) == (False, None)
    assert taken(cell, at=NOON) == {"acme": 2}


async def test_a_pause_is_put_again_listed_and_lifted_once(cell: PostgresCell) -> None:
    database = cell.broker.database
    await pause(cell, "acme", type="mail", until=NOON)
    await pauses.put(database, "acme", queue=None, type="mail", by=ADA)
    await pause(cell, queue="bulk")
    standing = await pauses.standing(database, "acme") or []
    assert [(one.queue, one.type, one.until, one.set_by) for one in standing] == [(None, "mail", None, "ada")]
    assert [one.company_id for one in await pauses.standing(database, None) or []] == [None]
    await lift(cell, "acme", type="mail")
    assert not await pauses.lift(database, "acme", queue=None, type="mail")
    assert await pauses.put(database, "nobody", queue="bulk", type=None) is None
    assert await pauses.standing(database, "nobody") is None


async def test_a_company_that_is_deleted_takes_its_pauses_with_it(cell: PostgresCell) -> None:
    await pause(cell, "acme", type="mail")
    assert await directory.delete(cell.broker.database, "acme")
    assert cell.rows("select from pauses") == []


async def test_a_claim_that_did_not_see_a_change_leaves_no_line_resting(cell: PostgresCell) -> None:
    cell.submit("acme", 2)
    database = cell.broker.database
    await directory.change(database, "acme", {"max_in_flight": 1})
    with other_connection(cell) as other, other.transaction():
        assert len(cell.take(2, on=other)) == 1
        change = asyncio.create_task(directory.change(database, "acme", {"max_in_flight": None}))
        await eventually(cell.keeps_somebody_waiting)
    await change
    assert taken(cell) == {"acme": 1}
