"""What is paused is given no turn, stands in nobody's way, and goes on in its old order. Fault 070."""

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


async def test_a_paused_type_blocks_no_line_even_before_it_is_set_aside(cell: PostgresCell) -> None:
    cell.submit("acme", 50, type="mail", priority=0)
    cell.submit("acme", 2)
    cell.submit("globex", 1, type="mail")
    await pause(cell, type="mail")
    assert taken(cell) == {"acme": 2}
    await lift(cell, type="mail")
    assert taken(cell) == {"acme": 50, "globex": 1}


async def test_a_paused_type_is_set_aside_in_batches_and_comes_back_in_its_order(cell: PostgresCell) -> None:
    mails = cell.submit("acme", 5_000, type="mail", priority=0)
    cell.submit("acme", 10)
    await pause(cell, "acme", type="mail")
    assert taken(cell) == {}  # a head is not searched that deep
    moved = 0
    while parked := await cell.broker.park([], queues=["default"], most=1_000):
        assert parked["mail"] <= 1_000
        moved += parked["mail"]
    assert moved == 5_000
    assert taken(cell) == {"acme": 10}
    urgent = cell.submit("acme", 1, type="mail", priority=0)
    assert taken(cell) == {}
    assert await cell.broker.unpark() == 0
    await lift(cell, "acme", type="mail")
    while await cell.broker.unpark(most=1_000):
        pass
    assert [turn.task_id for turn in cell.take(6_000)] == [*mails, *urgent]
    assert cell.contradictions() == []


async def test_a_pause_of_one_company_and_type_is_nobody_elses(cell: PostgresCell) -> None:
    for slug in ("acme", "globex"):
        cell.submit(slug, 2, type="mail")
        cell.submit(slug, 3)
    await pause(cell, "acme", type="mail")
    await cell.broker.park([], queues=["default"])
    assert taken(cell) == {"acme": 3, "globex": 5}


async def test_a_paused_queue_rests_and_comes_back_where_it_was(cell: PostgresCell) -> None:
    cell.submit("acme", 3)
    cell.submit("globex", 3)
    cell.submit("acme", 1, queue="bulk")
    await pause(cell, "acme", queue="default")
    assert taken(cell) == {"globex": 3}
    assert [turn.queue for turn in cell.take(5, queues=["default", "bulk"])] == ["bulk"]
    await lift(cell, "acme", queue="default")
    await pause(cell, queue="default")
    cell.submit("globex", 1)
    assert taken(cell) == {}
    assert taken(cell) == {}
    await lift(cell, queue="default")
    assert taken(cell) == {"acme": 3, "globex": 1}
    assert cell.contradictions() == []


async def test_a_pause_of_a_type_in_a_queue_leaves_the_type_elsewhere_alone(cell: PostgresCell) -> None:
    for queue in ("default", "bulk"):
        cell.submit("acme", 1, type="mail", queue=queue)
    await pause(cell, queue="bulk", type="mail")
    assert [turn.queue for turn in cell.take(5, queues=["default", "bulk"])] == ["default"]


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
        await eventually(lambda: bool(cell.rows("select from pg_locks where locktype = 'advisory' and not granted")))
    await change
    assert taken(cell) == {"acme": 1}
