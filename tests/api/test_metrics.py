"""The metrics tell the truth, in a bounded number of series, and never at the cost of requests or the database."""

from __future__ import annotations

import asyncio
import time
from uuid import uuid4

import pytest
from fastapi import FastAPI
from httpx2 import AsyncClient
from prometheus_client.parser import text_string_to_metric_families

from taketurns import telemetry
from taketurns.brokers.postgres import PostgresBroker
from taketurns.companies import directory
from taketurns.companies.directory import Company
from taketurns.history import figures
from taketurns.storage.database import Database

TASKS = "/companies/acme/tasks"
Series = dict[tuple[str, frozenset[tuple[str, str]]], float]


async def scrape(client: AsyncClient) -> Series:
    answer = await client.get("/metrics")
    assert answer.status_code == 200
    assert answer.headers["content-type"].startswith("text/plain")
    return {
        (sample.name, frozenset(sample.labels.items())): sample.value
        for family in text_string_to_metric_families(answer.text)
        for sample in family.samples
    }


def value(series: Series, name: str, **labels: str) -> float:
    return series.get((name, frozenset(labels.items())), 0.0)


async def test_requests_are_counted_by_template_method_and_status(client: AsyncClient, acme: Company) -> None:
    before = await scrape(client)
    for _ in range(3):
        await client.post(TASKS, json={"type": "anything"})
    await client.post(f"/companies/{acme.id}/tasks", json={"type": "nothing"})
    await client.head(TASKS)
    after = await scrape(client)

    def rose(name: str, **labels: str) -> float:
        return value(after, name, **labels) - value(before, name, **labels)

    route = "/companies/{companyId}/tasks"
    assert rose("http_requests_total", method="POST", route=route, status="201") == 3
    assert rose("http_requests_total", method="POST", route=route, status="422") == 1
    assert rose("http_requests_total", method="HEAD", route=route, status="200") == 1
    assert rose("http_request_seconds_count", method="POST", route=route) == 4
    assert 0 < rose("http_request_seconds_sum", method="POST", route=route) < 5


async def test_what_clients_invent_makes_no_series(client: AsyncClient, acme: Company) -> None:  # fault 156
    async def invent(count: int) -> None:
        for number in range(count):
            await client.get(f"/{uuid4()}/{number}")
            await client.request(f"METHOD{number}", f"/{uuid4()}")
            await client.request(f"METHOD{number}", TASKS)
            await client.get(f"{TASKS}/{uuid4()}", headers={"Host": f"host{number}"})
            await client.get(f"/companies/company-{number}")
            await client.get(f"/docs/{number}")
            await client.get("/docs")

    await invent(1)
    await scrape(client)
    before = await scrape(client)
    await invent(100)
    after = await scrape(client)
    assert _of_requests(before) == _of_requests(after)
    counted = value(after, "http_requests_total", method="GET", route="unmatched", status="404")
    assert counted - value(before, "http_requests_total", method="GET", route="unmatched", status="404") == 200
    assert value(after, "http_requests_total", method="other", route="unmatched", status="404") >= 100


def _of_requests(series: Series) -> set[object]:
    """The queue's figures are not there when the database is slow to give them."""
    return {key for key in series if key[0].startswith("http_")}


async def test_requests_in_progress_come_back_to_none(app: FastAPI, client: AsyncClient) -> None:  # fault 161
    waiting = asyncio.Event()

    @app.get("/waits")
    async def waits() -> None:
        waiting.set()
        await asyncio.Event().wait()

    @app.get("/breaks")
    async def breaks() -> None:
        raise RuntimeError

    def in_progress() -> float:
        (family,) = telemetry.HTTP_REQUESTS_IN_PROGRESS.collect()
        return family.samples[0].value

    before = in_progress()
    request = asyncio.create_task(client.get("/waits"))
    await waiting.wait()
    assert in_progress() == before + 1
    request.cancel()
    await asyncio.gather(request, return_exceptions=True)
    await client.get("/breaks")
    await client.get("/nothing")
    assert in_progress() == before


async def test_the_queue_is_told(client: AsyncClient, acme: Company, broker: PostgresBroker) -> None:
    for body in ({}, {}, {"delaySeconds": 60}):
        await client.post(TASKS, json={"type": "anything"} | body)
    series = await scrape(client)
    assert value(series, "tasks_by_status", status="pending") == 2
    assert value(series, "tasks_by_status", status="scheduled") == 1
    assert value(series, "tasks_by_status", status="completed") == 0
    assert 0 < value(series, "oldest_eligible_pending_age_seconds") < 60


async def test_without_a_database_the_queue_is_left_out(client: AsyncClient, database: Database, acme: Company) -> None:
    async with database.connection() as connection:
        await connection.execute("alter schema taketurns rename to elsewhere")
    series = await scrape(client)
    assert not [name for name, _ in series if name in {"tasks_by_status", "oldest_eligible_pending_age_seconds"}]
    assert value(series, "http_requests_in_progress") >= 1


async def test_many_scrapes_are_one_look(  # fault 159
    client: AsyncClient, database: Database, acme: Company, monkeypatch: pytest.MonkeyPatch
) -> None:
    looks = 0
    read = figures.read

    async def counted(database: Database) -> figures.Figures:
        nonlocal looks
        looks += 1
        return await read(database)

    monkeypatch.setattr(figures, "read", counted)
    monkeypatch.setattr("taketurns.api.figures.FRESH_SECONDS", 60.0)
    await asyncio.gather(*(client.get("/metrics") for _ in range(20)))
    assert "tasks_by_status" in (await client.get("/metrics")).text
    assert looks == 1


async def test_a_locked_table_makes_scrapes_neither_wait_nor_pile_up(  # fault 159
    client: AsyncClient, database: Database, acme: Company
) -> None:
    async with database.transaction() as connection:
        await connection.execute("lock table taketurns.pending_tasks")
        began_at = time.monotonic()
        scrapes = await asyncio.gather(*(client.get("/metrics") for _ in range(20)))
        assert time.monotonic() - began_at < database.statement_timeout  # which one that waited would have met
        cursor = await connection.execute("select from pg_stat_activity where wait_event_type = 'Lock'")
        assert cursor.rowcount == 0
    assert {answer.status_code for answer in scrapes} == {200}
    assert not any("tasks_by_status" in answer.text for answer in scrapes)


async def test_a_scrape_leaves_the_event_loop_to_others(  # fault 160
    address: str, database: Database, acme: Company
) -> None:
    requests = 0
    async with AsyncClient(base_url=address) as client, database.transaction() as connection:
        await connection.execute("lock table taketurns.pending_tasks")
        scraping = asyncio.create_task(scrape(client))
        while not scraping.done():
            await client.get("/health")
            requests += 1
        await scraping
    assert requests > 5  # one that held the loop would have let at most two through


async def test_the_companies_with_the_most_tasks_are_named_and_never_more_than_ten(
    client: AsyncClient, database: Database, acme: Company, broker: PostgresBroker
) -> None:
    for number in range(12):
        company = await directory.create(database, name=f"Company {number}", slug=f"company-{number}")
        for _ in range(number + 1):
            await client.post(f"/companies/{company.id}/tasks", json={"type": "anything"})
    series = await scrape(client)
    told = {
        dict(labels)["company"]: count for (name, labels), count in series.items() if name == "company_waiting_tasks"
    }
    assert told == {f"company-{number}": number + 1 for number in range(2, 12)} | {"_other": 3}
