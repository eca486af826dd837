"""Types that no living worker knows leave the walk, and come back with a worker that knows them."""

from __future__ import annotations

from uuid import UUID

from tests.brokers.postgres.cell import PostgresCell

WORKER = UUID(int=9)


def knows(cell: PostgresCell, types: list[str]) -> None:
    cell.connection.execute("delete from workers")
    cell.add_lease(WORKER)
    cell.connection.execute("update workers set types = %s", (types,))


def queues(cell: PostgresCell) -> dict[str, int]:
    return dict(cell.rows("select queue, count(*) from pending_tasks group by queue"))


async def test_only_what_blocks_a_line_and_nobody_knows_is_set_aside(cell: PostgresCell) -> None:
    for company in ("acme", "globex"):
        cell.add_company(company)
    knows(cell, ["work"])
    cell.submit("acme", 3, type="gone")
    cell.submit("acme", 2)
    cell.submit("globex", 1)
    cell.submit("globex", 1, type="gone")
    assert await cell.broker.park(["gone", "work"], queues=["default"]) == {"gone": 3}
    assert queues(cell) == {"default": 4, "!gone!default": 3}
    assert await cell.broker.park(["gone"], queues=["default"]) == {}
    assert [turn.company for turn in cell.take(10, skipped_types=["gone"])] == ["acme", "globex", "acme"]


async def test_what_was_set_aside_comes_back_in_order_with_a_worker_that_knows_it(cell: PostgresCell) -> None:
    cell.add_company("acme")
    knows(cell, [])
    submitted = cell.submit("acme", 5, type="gone", queue="bulk")
    assert await cell.broker.park(["gone"], queues=["bulk"], most=2) == {"gone": 2}
    assert await cell.broker.park(["gone"], queues=["bulk"]) == {"gone": 3}
    assert cell.take(10, queues=["bulk"]) == []
    assert cell.rows("select from lines") == []
    assert await cell.broker.unpark() == 0
    knows(cell, ["gone"])
    assert await cell.broker.unpark() == 5
    assert [turn.task_id for turn in cell.take(10, queues=["bulk"])] == submitted


async def test_a_type_of_a_living_worker_is_never_set_aside(cell: PostgresCell) -> None:
    cell.add_company("acme")
    knows(cell, ["news"])
    cell.submit("acme", 5, type="news")
    assert await cell.broker.park(["news"], queues=["default"]) == {}
    assert queues(cell) == {"default": 5}
