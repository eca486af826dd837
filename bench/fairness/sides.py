"""The three claims that a fairness run compares, with the same verbs: ours, the plain SKIP LOCKED FIFO, and LATERAL."""

from __future__ import annotations

import uuid
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Final
from uuid import UUID

from bench.claim import usual_statement
from bench.server import connect
from scripts.perf_seed import USUAL, USUAL_FIFO_INDEX, USUAL_INDEX
from taketurns.storage import schema
from taketurns.storage.embedded import PostgresServer
from taketurns.storage.ids import new_id

BLOCK: Final = 1_000


@dataclass(frozen=True, slots=True, order=True)
class Taken:
    """One claimed task."""

    company_id: UUID
    task_id: UUID
    token: UUID


class Side(ABC):
    """One of them, on a connection of its own. Companies are named by their number."""

    name: ClassVar[str]

    def __init__(self, url: str) -> None:
        self.connection = connect(url)

    @staticmethod
    @abstractmethod
    def build(url: str, weights: Sequence[int]) -> None:
        """Make the tables, and a company of each weight."""

    @abstractmethod
    def enqueue(self, company: int, tasks: int) -> list[UUID]: ...

    @abstractmethod
    def claim(self, batch: int) -> list[Taken]: ...

    @abstractmethod
    def settle(self, taken: Sequence[Taken]) -> None:
        """All of them are completed."""

    def ready(self) -> None:
        """After the first tasks are there: what a server does by itself in time."""
        self.connection.execute("vacuum (analyze)")


class Ours(Side):
    name = "ours"

    @staticmethod
    def build(url: str, weights: Sequence[int]) -> None:
        schema.upgrade(url)
        with (
            connect(url) as connection,
            connection.cursor().copy("copy companies (id, slug, name, weight) from stdin") as to,
        ):
            for company, weight in enumerate(weights):
                to.write_row((company_id(company), f"company-{company}", "", weight))

    def enqueue(self, company: int, tasks: int) -> list[UUID]:
        ids = [new_id() for _ in range(tasks)]
        for block in (ids[first : first + BLOCK] for first in range(0, tasks, BLOCK)):
            each = len(block)
            self.connection.execute(
                "select from enqueue(%s, %s, %s, %s, %s, %s, null, null, %s, null)",
                (
                    f"company-{company}",
                    block,
                    ["work"] * each,
                    ["{}"] * each,
                    ["default"] * each,
                    [5] * each,
                    [0] * each,
                ),
            )
        return ids

    def claim(self, batch: int) -> list[Taken]:
        token = uuid.uuid4()
        rows = self.connection.execute(
            "select company_id, task_id from claim(%s, '{default}', %s, %s) where task_id is not null",
            (UUID(int=1), batch, token),
        ).fetchall()
        return [Taken(company_id, task_id, token) for company_id, task_id in rows]

    def settle(self, taken: Sequence[Taken]) -> None:
        ordered = sorted(taken, key=lambda task: (task.company_id, task.task_id))
        self.connection.execute(
            "select from settle(%s, %s, %s, %s, null, null, null)",
            (
                [task.company_id for task in ordered],
                [task.task_id for task in ordered],
                [task.token for task in ordered],
                ["completed"] * len(ordered),
            ),
        )


class _Usual(Side):
    """A claim on one plain table."""

    script: ClassVar[str]

    def __init__(self, url: str) -> None:
        super().__init__(url)
        self._statement_of = usual_statement(self.connection, self.script)

    def enqueue(self, company: int, tasks: int) -> list[UUID]:
        ids = [new_id() for _ in range(tasks)]
        self.connection.execute(
            "insert into usual.tasks (id, company_id, type, status, priority, payload, run_after, created_at)"
            " select i.id, %s, 'work', 'pending', 5, '{}', now(), clock_timestamp() from unnest(%s::uuid[]) as i(id)",
            (company_id(company), ids),
        )
        return ids

    def claim(self, batch: int) -> list[Taken]:
        rows = self.connection.execute(self._statement_of(batch)).fetchall()
        return [Taken(company_id, task_id, UUID(int=0)) for company_id, task_id in rows]

    def settle(self, taken: Sequence[Taken]) -> None:
        self.connection.execute(
            "update usual.tasks set status = 'completed' where id = any(%s)", ([task.task_id for task in taken],)
        )


class Fifo(_Usual):
    name = "FIFO"
    script = "perf_explain_fifo"

    @staticmethod
    def build(url: str, weights: Sequence[int]) -> None:
        with connect(url) as connection:
            connection.execute(USUAL)
            connection.execute(USUAL_FIFO_INDEX)


class Lateral(_Usual):
    name = "LATERAL"
    script = "perf_explain_lateral"

    @staticmethod
    def build(url: str, weights: Sequence[int]) -> None:
        with connect(url) as connection:
            connection.execute(USUAL)
            connection.execute(USUAL_INDEX)


SIDES: Final = (Ours, Fifo, Lateral)


def company_id(company: int) -> UUID:
    return UUID(int=company + 1)


def company_number(of: UUID) -> int:
    return of.int - 1


def built(side: type[Side], server: PostgresServer, database: str, weights: Sequence[int]) -> str:
    """The address of a new database of this side, with these companies."""
    url = server.create_database(f"{database}_{side.name.lower()}")
    side.build(url, weights)
    return url
