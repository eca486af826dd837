"""`GET /workers`: who was heard of, page by page, and who is late."""

from __future__ import annotations

from datetime import timedelta
from uuid import UUID

import pytest
from httpx2 import AsyncClient

from taketurns.brokers.postgres import PostgresBroker
from taketurns.engine.lease import Beat, Holder, Kind
from taketurns.engine.orders import WorkerState
from taketurns.storage.database import Database
from taketurns.storage.ids import new_id


def start(broker: PostgresBroker, name: str, *, kind: Kind = Kind.WORKER) -> UUID:
    line, worker_id = broker.lease_line(patience_seconds=5), new_id()
    line.take(worker_id, Holder(queues=("mail",), types=(), concurrency=4, name=name, kind=kind), former=None)
    line.close()
    return worker_id


def leave(broker: PostgresBroker, worker_id: UUID) -> None:
    line = broker.lease_line(patience_seconds=5)
    line.remove(worker_id, seconds_since_claim=None)
    line.close()


def beat(broker: PostgresBroker, worker_id: UUID, state: WorkerState) -> Beat | None:
    line = broker.lease_line(patience_seconds=5)
    told = line.beat(worker_id, seconds_since_claim=None, state=state)
    line.close()
    return told


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


async def orders_shown(client: AsyncClient) -> list[tuple[str | None, str | None]]:
    return [(one["wanted"], one["state"]) for one in (await client.get("/workers")).json()["workers"]]


@pytest.mark.parametrize("by_name", [True, False])
async def test_a_worker_is_drained_resumed_and_stopped(
    client: AsyncClient, broker: PostgresBroker, by_name: bool
) -> None:
    worker_id = start(broker, "host-1:4711")
    path = f"/workers/{'host-1:4711' if by_name else worker_id}"
    assert await orders_shown(client) == [("run", "running")]
    for order, wanted, state in (
        ("drain", "drain", "draining"),
        ("resume", "run", "running"),
        ("stop", "stop", "stopping"),
    ):
        told = await client.post(f"{path}/{order}")
        assert (told.status_code, told.json()["id"], told.json()["wanted"]) == (202, str(worker_id), wanted)
        heard = beat(broker, worker_id, WorkerState(state))
        assert heard is not None
        assert heard.wanted == wanted
        assert await orders_shown(client) == [(wanted, state)]
    assert (await client.post(f"{path}/stop")).status_code == 202
    for order in ("drain", "resume"):
        refused = await client.post(f"{path}/{order}")
        assert (refused.status_code, refused.json()["code"]) == (409, "worker_stops")


async def test_of_several_processes_of_a_name_the_list_tells_who_is_least_far(
    client: AsyncClient, broker: PostgresBroker
) -> None:
    first, second = start(broker, "mail"), start(broker, "mail")
    assert (await client.post(f"/workers/{second}/drain")).status_code == 202
    assert await orders_shown(client) == [("run", "running")]
    assert (await client.post("/workers/mail/stop")).status_code == 202
    assert await orders_shown(client) == [("stop", "running")]
    beat(broker, first, WorkerState.STOPPING)
    beat(broker, second, WorkerState.DRAINING)
    assert await orders_shown(client) == [("stop", "draining")]


@pytest.mark.parametrize("order", ["drain", "resume", "stop"])
async def test_who_is_gone_or_was_never_there_takes_no_orders(
    client: AsyncClient, broker: PostgresBroker, order: str
) -> None:
    leave(broker, start(broker, "gone"))
    start(broker, "nightly", kind=Kind.PASS)
    for name in ("gone", "nightly"):
        refused = await client.post(f"/workers/{name}/{order}")
        assert (refused.status_code, refused.json()["code"]) == (409, "worker_gone")
    for nobody in ("nobody", str(new_id()), "x" * 201, "%00"):
        missing = await client.post(f"/workers/{nobody}/{order}")
        assert (missing.status_code, missing.json()["code"]) == (404, "worker_not_found")
