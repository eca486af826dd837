"""`GET /workers`: who was heard of, page by page, and who is late."""

from __future__ import annotations

from datetime import timedelta

import pytest
from httpx2 import AsyncClient

from taketurns.brokers.postgres import PostgresBroker
from taketurns.engine.lease import Holder
from taketurns.storage.database import Database
from taketurns.storage.ids import new_id


def start(broker: PostgresBroker, name: str) -> None:
    line = broker.lease_line(patience_seconds=5)
    line.take(new_id(), Holder(queues=("mail",), types=(), concurrency=4, name=name), former=None)
    line.close()


async def grow_old(database: Database, name: str) -> None:
    async with database.connection() as connection:
        await connection.execute(
            "update taketurns.heartbeats set beat_at = beat_at - %s where name = %s", (timedelta(hours=1), name)
        )


async def test_workers_are_listed_as_they_were_heard_of(
    client: AsyncClient, broker: PostgresBroker, database: Database
) -> None:
    for name in ("old", "new"):
        start(broker, name)
    await grow_old(database, "old")
    page = (await client.get("/workers")).json()
    assert (page["hasMore"], page["nextCursor"]) == (False, None)
    assert [(worker["name"], worker["isLate"]) for worker in page["workers"]] == [("new", False), ("old", True)]
    new, old = page["workers"]
    told = {
        name: new[name] for name in ("kind", "queues", "types", "concurrency", "processes", "lastClaimAt", "leftAt")
    }
    assert told == {
        "kind": "worker",
        "queues": ["mail"],
        "types": 0,
        "concurrency": 4,
        "processes": 1,
        "lastClaimAt": None,
        "leftAt": None,
    }
    assert old["ageSeconds"] > 3600
    patient = (await client.get("/workers", params={"maxAgeSeconds": 7200})).json()
    assert not any(worker["isLate"] for worker in patient["workers"])


async def test_workers_come_page_by_page(client: AsyncClient, broker: PostgresBroker) -> None:
    for name in ("a", "b", "c"):
        start(broker, name)
    first = await client.get("/workers", params={"limit": 2})
    assert 'rel="next"' in first.headers["link"]
    rest = await client.get("/workers", params={"limit": 2, "cursor": first.json()["nextCursor"]})
    assert [worker["name"] for page in (first, rest) for worker in page.json()["workers"]] == ["c", "b", "a"]


@pytest.mark.parametrize("wrong", [{"maxAgeSeconds": "soon"}, {"maxAgeSeconds": "0"}, {"maxAgeSeconds": "nan"}])
async def test_an_age_that_is_none_is_refused(client: AsyncClient, wrong: dict[str, str]) -> None:
    refused = await client.get("/workers", params=wrong)
    assert refused.status_code == 422
    assert refused.json()["errors"][0]["pointer"] == "maxAgeSeconds"


async def test_the_age_of_heartbeats_is_measured(client: AsyncClient, broker: PostgresBroker) -> None:
    start(broker, "nightly")
    lines = (await client.get("/metrics")).text.splitlines()
    (line,) = [line for line in lines if line.startswith("heartbeat_age_seconds{")]
    assert line.startswith('heartbeat_age_seconds{name="nightly"} ')
    assert 0 <= float(line.split()[-1]) < 60


async def test_readiness_does_not_ask_for_workers(
    client: AsyncClient, broker: PostgresBroker, database: Database
) -> None:
    start(broker, "old")
    await grow_old(database, "old")
    assert (await client.get("/ready")).status_code == 200
