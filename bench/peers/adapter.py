"""What the files of all Python peers share: their roles, the record of each run, and the talk with the harness.

`install` puts the peer's schema into an empty store, `work` runs one worker until SIGTERM, and `produce` does what it
is asked on its standard input, a line of JSON each, and answers with one. It needs the standard library alone, so that
it runs in every environment; `psycopg` and `redis` are those of the peer.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
import time
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager
from typing import Any, Final, NoReturn

from bench.peers import orders
from bench.peers.records import RECORD

ORDERS: Final = orders.given()
COMPANIES: Final = 20
IN_A_ROW: Final = 1_000

Task = dict[str, Any]

_records = os.open(ORDERS.records, os.O_WRONLY | os.O_APPEND | os.O_CREAT) if ORDERS.records else -1


def run(number: int) -> None:
    """What every sync handler does."""
    began = time.monotonic()
    if ORDERS.sleep_seconds:
        time.sleep(ORDERS.sleep_seconds)
    os.write(_records, RECORD.pack(number, began, time.monotonic()))


async def run_async(number: int) -> None:
    """What every async handler does."""
    began = time.monotonic()
    if ORDERS.sleep_seconds:
        await asyncio.sleep(ORDERS.sleep_seconds)
    os.write(_records, RECORD.pack(number, began, time.monotonic()))


def company_names() -> list[str]:
    """All companies that tasks can be of."""
    return [*(f"company-{place}" for place in range(COMPANIES)), "flood", "quiet"]


def make_tasks(first: int, count: int, company: str | None) -> list[Task]:
    """Payloads from this number on: of one company, or of all of them, a thousand in a row of each."""
    return [
        {
            "to": "somebody@example.com",
            "subject": "Hi",
            "number": number,
            "company": company or f"company-{number // IN_A_ROW % COMPANIES}",
        }
        for number in range(first, first + count)
    ]


class Producer:
    """Enqueues over one connection. `batch` is the most that `send_many` is given at once; 0: there is no such call."""

    batch = 0

    async def send(self, task: Task) -> None:
        raise NotImplementedError

    async def send_many(self, tasks: list[Task]) -> None:
        raise NotImplementedError


class Adapter(ABC):
    """One peer. `install` finds an empty database or an empty Redis."""

    def install(self) -> None:  # noqa: B027  few peers on Redis install anything
        """Nothing, where the peer makes what it needs by itself."""

    @abstractmethod
    def producer(self) -> AbstractAsyncContextManager[Producer]:
        """What enqueues, while the context lasts."""

    @abstractmethod
    def work(self) -> object:
        """Run one worker."""

    @abstractmethod
    def left(self) -> int:
        """How many tasks the store does not show as done yet."""


def count(query: str) -> int:
    """The answer of a query that counts."""
    import psycopg  # noqa: PLC0415  peers on Redis have none

    with psycopg.connect(ORDERS.postgres) as connection:
        ((number,),) = connection.execute(query.encode()).fetchall()
    return int(number)


def connect_redis() -> Any:
    """A client of the Redis of the orders."""
    import redis  # noqa: PLC0415  peers on PostgreSQL have none

    return redis.Redis.from_url(ORDERS.redis)


def unread(streams: list[Any]) -> int:
    """What the groups of streams have not read, or not acknowledged; given are answers of XINFO GROUPS."""
    return sum(group["pending"] + (group["lag"] or 0) for groups in streams for group in groups)


def main(peer: Adapter) -> None:
    """Do what the command line says."""
    match sys.argv[1:]:
        case ["install"]:
            peer.install()
        case ["work"]:
            signal.signal(signal.SIGTERM, _leave)
            peer.work()
        case ["produce"]:
            asyncio.run(_produce(peer, _answers()))
        case words:
            sys.exit(f"{words} is none of install, produce and work")


def _leave(*_: object) -> NoReturn:
    sys.exit(0)


def _answers() -> Callable[..., None]:
    """What answers the harness; whatever else is printed goes where errors go."""
    line = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)

    def answer(**said: object) -> None:
        line.write(json.dumps(said) + "\n")
        line.flush()

    return answer


async def _produce(peer: Adapter, answer: Callable[..., None]) -> None:
    async with peer.producer() as producer:
        answer(batch=producer.batch)
        while line := await asyncio.to_thread(sys.stdin.readline):
            asked: dict[str, Any] = json.loads(line)
            if asked["do"] == "left":
                answer(left=peer.left())
                continue
            tasks = make_tasks(asked["first"], asked["count"], asked["company"])
            match asked["do"]:
                case "each":
                    answer(seconds=await _seconds(lambda: _send_each(producer, tasks)))  # noqa: B023  awaited here
                case "many":
                    answer(seconds=await _seconds(lambda: _send_many(producer, tasks)))  # noqa: B023
                case "spaced":
                    answer(sent_at=await _send_spaced(producer, tasks, asked["gaps"]))


async def _seconds(sending: Callable[[], Awaitable[None]]) -> float:
    began = time.monotonic()
    await sending()
    return time.monotonic() - began


async def _send_each(producer: Producer, tasks: list[Task]) -> None:
    for task in tasks:
        await producer.send(task)


async def _send_many(producer: Producer, tasks: list[Task]) -> None:
    """In the fastest way that the peer has."""
    if not producer.batch:
        await _send_each(producer, tasks)
        return
    for start in range(0, len(tasks), producer.batch):
        await producer.send_many(tasks[start : start + producer.batch])


async def _send_spaced(producer: Producer, tasks: list[Task], gaps: list[float]) -> list[float]:
    """One at a time, after a gap each; when each was sent."""
    sent_at = []
    for task, gap in zip(tasks, gaps, strict=True):
        await asyncio.sleep(gap)
        sent_at.append(time.monotonic())
        await producer.send(task)
    return sent_at
