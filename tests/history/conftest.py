"""A company in a fresh database, and the means to let its tasks live."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from uuid import UUID, uuid4

import pytest

from taketurns.brokers.postgres import PostgresBroker
from taketurns.companies import directory
from taketurns.engine.task import ClaimedTask, NewTask, Outcome, Report
from taketurns.storage.database import Database


@dataclass(frozen=True)
class Life:
    """One company's tasks, moved by hand."""

    database: Database
    broker: PostgresBroker
    company_id: UUID

    async def create(
        self,
        count: int = 1,
        *,
        type: str = "work",
        run_after: datetime | None = None,
        delay_seconds: float | None = None,
        tags: tuple[str, ...] = (),
        at: datetime | None = None,
    ) -> list[UUID]:
        new = [NewTask(type=type, payload="{}", run_after=run_after, delay_seconds=delay_seconds, tags=tags)] * count
        return [task.task_id for task in await self.broker.enqueue(str(self.company_id), new, at=at)]

    async def claim(self, count: int = 1, *, at: datetime | None = None) -> list[ClaimedTask]:
        return await self.broker.claim(uuid4(), queues=["default"], batch=count, at=at)

    async def end(
        self,
        claimed: Sequence[ClaimedTask],
        outcome: Outcome = Outcome.COMPLETED,
        *,
        delay_seconds: float = 60,
        at: datetime | None = None,
    ) -> None:
        error = None if outcome is Outcome.COMPLETED else "went wrong"
        result = '"done"' if outcome is Outcome.COMPLETED else None
        await self.broker.settle(
            [Report(task, outcome, result, error, delay_seconds) for task in claimed],
            at=at,
        )

    async def add_worker(
        self,
        *,
        queues: Sequence[str] = ("default",),
        types: Sequence[str] = ("work",),
        concurrency: int = 1,
        age_seconds: float = 0.0,
    ) -> None:
        """A worker's lease, beaten so long ago."""
        await self.execute(
            "insert into workers (id, name, host, version, queues, types, concurrency, started_at, beat_at)"
            " values (gen_random_uuid(), 'worker', 'host', '0.1.0', %s, %s, %s, now(),"
            " now() - make_interval(secs => %s))",
            list(queues),
            list(types),
            concurrency,
            age_seconds,
        )

    async def execute(self, query: str, *arguments: object) -> None:
        async with self.database.transaction() as connection:
            await connection.execute("select set_config('search_path', %s, true)", (self.database.schema,))
            await connection.execute(query.encode(), arguments)


@pytest.fixture
async def database(database_url: str) -> AsyncIterator[Database]:
    database = Database(database_url, pool_size=4)
    await database.open()
    yield database
    await database.close()


@pytest.fixture
async def life(database: Database) -> AsyncIterator[Life]:
    broker = PostgresBroker(database)
    company = await directory.create(database, name="Acme", slug="acme")
    yield Life(database, broker, company.id)
    await broker.notifier.flush()
