"""Jobs over HTTP: created at once, looked at, waited for and watched; and what is told while their broker is away."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any
from urllib.parse import urlsplit
from uuid import UUID, uuid4

import pytest
import redis
from fastapi import FastAPI
from httpx2 import ASGITransport, AsyncClient, Response
from sqlalchemy import select

from taketurns import telemetry
from taketurns.api import streams
from taketurns.api.application import create_api
from taketurns.brokers.postgres import PostgresBroker
from taketurns.brokers.redis import RedisBroker
from taketurns.brokers.redis.server import Server
from taketurns.companies import directory
from taketurns.companies.directory import Company
from taketurns.companies.quotas import JobRefunds
from taketurns.engine.broker import Broker
from taketurns.engine.errors import BeingDeleted, Unavailable
from taketurns.engine.registry import Registry
from taketurns.engine.task import ClaimedTask, Enqueued, NewTask, Outcome, Report, Status
from taketurns.storage.database import Database
from taketurns.storage.models import JobReservation
from tests.valkeys import Valkey, Valkeys
from tests.waiting import PATIENCE, eventually

JOBS = "/companies/acme/jobs"
JOB = {"type": "anything", "payload": {"value": 1}}
WORKER = UUID(int=1)

pytestmark = pytest.mark.usefixtures("acme")


@pytest.fixture
def valkey_server(valkey: Valkeys) -> Valkey:
    """A server of the test's own, to be killed."""
    return valkey()


@pytest.fixture
async def jobs(valkey_url: str, valkey_cell: str) -> AsyncIterator[RedisBroker]:
    server = Server(valkey_url, cell=valkey_cell, pool_size=8)
    yield RedisBroker(server)
    await server.close()


def api(database: Database, broker: PostgresBroker, registry: Registry, jobs: RedisBroker | None) -> FastAPI:
    return create_api(
        database=database, broker=broker, registry=registry, job_broker=jobs, version="0.1.0", cursor_secret=b"secret"
    )


@pytest.fixture
async def app(
    database: Database, broker: PostgresBroker, registry: Registry, jobs: RedisBroker
) -> AsyncIterator[FastAPI]:
    app = api(database, broker, registry, jobs)
    yield app
    await app.state.parts.waiting.close()
    await app.state.parts.jobs.waiting.close()


async def create(client: AsyncClient, **headers: str) -> str:
    answer = await client.post(JOBS, json=JOB, headers=headers)
    assert answer.status_code == 201, answer.text
    return str(answer.json()["jobId"])


async def claim(jobs: RedisBroker) -> ClaimedTask:
    (job,) = await jobs.claim(WORKER, queues=["default"], batch=1)
    return job


async def finish(jobs: RedisBroker) -> None:
    await jobs.settle([Report(await claim(jobs), Outcome.COMPLETED, result="42")])


async def until_watching(app: FastAPI, count: int = 1) -> None:
    waiting = app.state.parts.jobs.waiting
    await eventually(lambda: waiting.count == count and all_are_told(app))


def all_are_told(app: FastAPI) -> bool:
    waiting = app.state.parts.jobs.waiting
    return all(waiter.is_told for waiters in waiting.waiters.values() for waiter in waiters)


@dataclass
class Sent:
    """One event of a stream."""

    event: str = ""
    id: str = ""
    data: dict[str, object] = field(default_factory=dict)


async def events(client: AsyncClient, job_id: str, *, last: str | None = None) -> AsyncIterator[Sent]:
    """The events of a stream until it ends."""
    headers = {} if last is None else {"Last-Event-ID": last}
    async with client.stream("GET", f"{JOBS}/{job_id}/events", headers=headers, timeout=PATIENCE) as answer:
        assert answer.status_code == 200, await answer.aread()
        assert answer.headers["content-type"].startswith("text/event-stream")
        sent = Sent()
        async for line in answer.aiter_lines():
            name, _, value = line.partition(": ")
            if name == "data":
                sent.data = json.loads(value)
            elif name in {"event", "id"}:
                setattr(sent, name, value)
            elif not line and sent.event:
                yield sent
                sent = Sent()


async def test_a_job_is_created_and_looked_at(client: AsyncClient, jobs: RedisBroker, acme: Company) -> None:
    made = await client.post(JOBS, json=JOB | {"priority": 1}, headers={"X-Request-Id": "r-1"})
    body = made.json()
    assert made.status_code == 201
    assert made.headers["location"] == f"/companies/{acme.id}/jobs/{body['jobId']}"
    assert (body["status"], body["payload"], body["priority"], body["requestId"]) == ("pending", {"value": 1}, 1, "r-1")
    looked = await client.get(made.headers["location"])
    assert (looked.status_code, looked.json(), looked.headers["etag"]) == (200, body, made.headers["etag"])
    await finish(jobs)
    looked = await client.get(made.headers["location"], headers={"If-None-Match": made.headers["etag"]})
    assert (looked.json()["status"], looked.json()["result"]) == ("completed", 42)
    assert looked.json()["expiresAt"] > looked.json()["finishedAt"]


async def test_a_key_makes_one_job(client: AsyncClient) -> None:
    key = {"Idempotency-Key": "once"}
    job_id = await create(client, **key)
    again = await client.post(JOBS, json=JOB, headers=key)
    assert (again.status_code, again.json()["jobId"], again.headers["idempotent-replayed"]) == (200, job_id, "true")
    other = await client.post(JOBS, json=JOB | {"priority": 1}, headers=key)
    assert (other.status_code, other.json()["code"]) == (422, "idempotency_key_reused")


async def test_what_is_wrong_with_a_job_is_told_as_with_a_task(client: AsyncClient) -> None:
    for body, code in (({"type": "nothing"}, "unknown_type"), ({"type": "send_email"}, "invalid_payload")):
        answer = await client.post(JOBS, json=body)
        assert (answer.status_code, answer.json()["code"]) == (422, code)
    answer = await client.post("/companies/nobody/jobs", json=JOB)
    assert (answer.status_code, answer.json()["code"]) == (404, "company_not_found")


async def test_another_companys_job_is_not_there(client: AsyncClient, database: Database, jobs: RedisBroker) -> None:
    await directory.create(database, name="Zeta", slug="zeta")  # fault 039
    theirs = await create(client)
    await client.post("/companies/zeta/jobs", json=JOB)
    for company in ("zeta", "nobody", str(uuid4())):
        for method, path in (("GET", ""), ("GET", "/events"), ("POST", "/cancel"), ("POST", "/retry")):
            answers = [
                (await client.request(method, f"/companies/{company}/jobs/{job_id}{path}")).json()
                for job_id in (theirs, str(uuid4()))
            ]
            for answer in answers:
                del answer["instance"], answer["requestId"]
            assert answers[0] == answers[1]
            assert answers[0]["code"] == "job_not_found"
    assert (await client.get(f"{JOBS}/{theirs}")).json()["status"] == "pending"


async def test_a_job_is_cancelled_and_run_again(client: AsyncClient, jobs: RedisBroker) -> None:
    job_id = await create(client)
    for _ in range(2):
        assert (await client.post(f"{JOBS}/{job_id}/cancel")).json()["status"] == "cancelled"
    assert (await client.post(f"{JOBS}/{job_id}/retry")).json()["status"] == "pending"
    held = await claim(jobs)
    assert (await client.post(f"{JOBS}/{job_id}/retry")).json()["code"] == "invalid_state"
    await jobs.settle([Report(held, Outcome.COMPLETED)])
    assert (await client.post(f"{JOBS}/{job_id}/cancel")).json()["code"] == "invalid_state"


async def test_a_job_is_waited_for(app: FastAPI, client: AsyncClient, jobs: RedisBroker) -> None:
    job_id = await create(client)
    looking = asyncio.create_task(client.get(f"{JOBS}/{job_id}", headers={"Prefer": "wait=60"}))
    await until_watching(app)
    await finish(jobs)
    answer = await asyncio.wait_for(looking, PATIENCE)
    assert (answer.json()["status"], answer.headers["preference-applied"]) == ("completed", "wait=60")
    creating = asyncio.create_task(client.post(JOBS, json=JOB, headers={"Prefer": "wait=60"}))
    await until_watching(app)
    await finish(jobs)
    answer = await asyncio.wait_for(creating, PATIENCE)
    assert (answer.status_code, answer.json()["status"]) == (201, "completed")


async def test_a_company_is_as_its_latest_change_says(client: AsyncClient, jobs: RedisBroker) -> None:
    await create(client)
    await client.patch("/companies/acme", json={"paused": True})
    assert await jobs.claim(WORKER, queues=["default"], batch=1) == []
    await client.patch("/companies/acme", json={"paused": False})
    await finish(jobs)


@pytest.mark.parametrize("open_as", ["scheduled", "pending", "processing"])
async def test_a_company_with_open_jobs_is_not_deleted_unless_by_force(
    client: AsyncClient, jobs: RedisBroker, acme: Company, open_as: str
) -> None:
    job_id = await create(client)
    if open_as == "processing":
        await claim(jobs)
    elif open_as == "scheduled":
        await client.post(f"{JOBS}/{job_id}/cancel")
        job_id = (await client.post(JOBS, json=JOB | {"delaySeconds": 60})).json()["jobId"]
    refused = await client.delete("/companies/acme")
    assert (refused.status_code, refused.json()["code"]) == (409, "company_has_open_tasks")
    assert "jobs" in refused.json()["detail"]
    assert (await client.get(f"{JOBS}/{job_id}")).json()["status"] == open_as
    await create(client)
    assert (await client.delete("/companies/acme?force=true")).status_code == 204
    assert await jobs.job(acme.id, UUID(job_id)) is None


async def test_a_company_whose_jobs_have_ended_is_deleted_with_them(
    client: AsyncClient, jobs: RedisBroker, acme: Company
) -> None:
    job_id = await create(client)
    await finish(jobs)
    assert (await client.delete("/companies/acme")).status_code == 204
    assert await jobs.job(acme.id, UUID(job_id)) is None


async def test_a_deletion_that_is_refused_for_tasks_keeps_taking_jobs(client: AsyncClient, jobs: RedisBroker) -> None:
    job_id = await create(client)
    await finish(jobs)
    await client.post("/companies/acme/tasks", json=JOB)
    assert (await client.delete("/companies/acme")).status_code == 409
    assert (await client.get(f"{JOBS}/{job_id}")).json()["status"] == "completed"
    await create(client)


async def test_no_job_comes_in_while_its_company_is_deleted(
    client: AsyncClient, database: Database, jobs: RedisBroker, acme: Company
) -> None:
    """The deletion waits for its turn in the database, when it has looked for jobs already."""
    job_id = await create(client)
    await finish(jobs)
    async with database.transaction() as connection:
        await connection.execute(
            f"select pg_advisory_xact_lock({database.schema}.company_lock(%s))".encode(), (acme.id,)
        )
        deleting = asyncio.create_task(client.delete("/companies/acme"))
        async with asyncio.timeout(PATIENCE):
            while await jobs.server.command("EXISTS", jobs.server.key("closed", acme.id)) == 0:
                pass
        refused = await client.post(JOBS, json=JOB)
        assert (refused.status_code, refused.json()["code"]) == (503, "being_deleted")
        with pytest.raises(BeingDeleted):
            await jobs.retry("acme", UUID(job_id))
    assert (await deleting).status_code == 204
    assert (await client.post(JOBS, json=JOB)).status_code == 404


async def test_a_company_is_created_with_jobs_or_deleted_but_never_both(
    client: AsyncClient, jobs: RedisBroker, acme: Company
) -> None:
    """Whoever was told that a job was created finds it, for the deletion was refused."""
    answers = await asyncio.gather(
        *(client.post(JOBS, json=JOB) for _ in range(8)),
        client.delete("/companies/acme"),
        *(client.post(JOBS, json=JOB) for _ in range(8)),
    )
    created = [answer.json()["jobId"] for answer in answers if answer.status_code == 201]
    is_deleted = any(answer.status_code == 204 for answer in answers)
    assert is_deleted != bool(created)
    for job_id in created:
        assert await jobs.job(acme.id, UUID(job_id)) is not None


async def test_jobs_are_charged_to_the_companys_quotas(client: AsyncClient, jobs: RedisBroker) -> None:
    await client.patch("/companies/acme", json={"quotas": {"hour": 2}})
    key = {"Idempotency-Key": "once"}
    await create(client, **key)
    await client.post(JOBS, json=JOB, headers=key)
    await client.post(JOBS, json=JOB | {"priority": 1}, headers=key)
    job_id = await create(client)
    refused = await client.post(JOBS, json=JOB)
    assert (refused.status_code, refused.json()["code"]) == (429, "quota_exceeded")
    assert len(await jobs.claim(WORKER, queues=["default"], batch=10)) == 2
    await client.post(f"{JOBS}/{job_id}/cancel")
    assert (await client.post(f"{JOBS}/{job_id}/retry")).json()["code"] == "quota_exceeded"


async def test_a_company_has_no_more_jobs_waiting_than_it_may_and_a_refused_one_is_not_charged(
    client: AsyncClient, jobs: RedisBroker
) -> None:
    await client.patch("/companies/acme", json={"quotas": {"hour": 10}, "maxQueued": 1})
    await create(client)
    refused = await client.post(JOBS, json=JOB)
    assert (refused.status_code, refused.json()["code"]) == (429, "queue_full")
    assert await charged(client) == (2, 1)  # reserved, and given back
    await jobs.claim(WORKER, queues=["default"], batch=10)
    await create(client)


async def test_each_lane_is_held_to_the_limits_of_a_company_by_itself(
    client: AsyncClient, broker: PostgresBroker, jobs: RedisBroker
) -> None:
    rate = {"tasks": 1, "seconds": 3600, "burst": 2}
    await client.patch("/companies/acme", json={"maxQueued": 2, "maxInFlight": 1, "rate": rate})
    lanes: dict[str, Broker] = {JOBS: jobs, "/companies/acme/tasks": broker}
    for path in lanes:
        made = [(await client.post(path, json=JOB)).status_code for _ in range(3)]
        assert made == [201, 201, 429]
    for lane in lanes.values():
        for _ in range(2):
            (held,) = await lane.claim(WORKER, queues=["default"], batch=10)
            await lane.settle([Report(held, Outcome.COMPLETED)])
    for path, lane in lanes.items():
        assert (await client.post(path, json=JOB)).status_code == 201
        assert await lane.claim(WORKER, queues=["default"], batch=10) == []


@pytest.mark.parametrize("of", ["/companies/acme", ""])
@pytest.mark.parametrize("paused", [{"queue": "default"}, {"type": "anything"}])
async def test_a_pause_of_a_queue_or_a_type_holds_jobs_at_once(
    client: AsyncClient, jobs: RedisBroker, of: str, paused: dict[str, str]
) -> None:
    await create(client)
    assert (await client.put(f"{of}/pauses", json=paused)).status_code == 200
    assert await jobs.claim(WORKER, queues=["default"], batch=10) == []
    assert (await client.delete(f"{of}/pauses", params=paused)).status_code == 204
    assert len(await jobs.claim(WORKER, queues=["default"], batch=10)) == 1


# Fault 047.
async def test_a_replay_is_answered_when_the_quota_is_used_up(client: AsyncClient) -> None:
    await client.patch("/companies/acme", json={"quotas": {"hour": 1}})
    key = {"Idempotency-Key": "once"}
    job_id = await create(client, **key)
    again = await client.post(JOBS, json=JOB, headers=key)
    assert (again.status_code, again.json()["jobId"], again.headers["idempotent-replayed"]) == (200, job_id, "true")
    other = await client.post(JOBS, json=JOB | {"priority": 1}, headers=key)
    assert (other.status_code, other.json()["code"]) == (422, "idempotency_key_reused")
    for headers in ({}, {"Idempotency-Key": "another"}):
        refused = await client.post(JOBS, json=JOB, headers=headers)
        assert (refused.status_code, refused.json()["code"]) == (429, "quota_exceeded")
    assert await charged(client) == (1, 0)


async def test_a_replay_reserves_nothing(client: AsyncClient) -> None:
    await client.patch("/companies/acme", json={"quotas": {"hour": 5}})
    key = {"Idempotency-Key": "once"}
    job_id = await create(client, **key)
    again = await client.post(JOBS, json=JOB, headers=key)
    assert (again.json()["jobId"], again.headers["idempotent-replayed"]) == (job_id, "true")
    assert (await client.post(JOBS, json=JOB | {"priority": 1}, headers=key)).status_code == 422
    assert await charged(client) == (1, 0)


async def charged(client: AsyncClient) -> tuple[int, int]:
    """What was reserved of acme's hour, and refunded of it."""
    hour = (await client.get("/companies/acme/usage")).json()["current"][0]
    return hour["reserved"], hour["refunded"]


async def fail(jobs: RedisBroker) -> None:
    await jobs.settle([Report(await claim(jobs), Outcome.FAILED, error="broken")])


async def test_a_job_that_failed_twice_gives_both_charges_back(
    client: AsyncClient, database: Database, jobs: RedisBroker, acme: Company
) -> None:
    await client.patch("/companies/acme", json={"quotas": {"hour": 1}})
    job_id = await create(client)
    first = await jobs.job(acme.id, UUID(job_id))
    await fail(jobs)
    assert (await client.post(f"{JOBS}/{job_id}/retry")).json()["status"] == "pending"
    again = await jobs.job(acme.id, UUID(job_id))
    assert first is not None
    assert again is not None
    assert first.reserved_at != again.reserved_at
    assert await charged(client) == (2, 1)
    duty = JobRefunds(database, jobs)
    await duty.step()
    assert await charged(client) == (2, 1), "the refund of the first run is not taken for the second's"
    await fail(jobs)
    for _ in range(2):
        await duty.step()
    assert await charged(client) == (2, 2)


async def test_a_job_that_many_run_again_at_once_is_charged_once(
    client: AsyncClient, database: Database, jobs: RedisBroker, acme: Company
) -> None:
    await client.patch("/companies/acme", json={"quotas": {"hour": 100}})
    for end in (Outcome.COMPLETED, Outcome.FAILED):
        job_id = await create(client)
        before = await charged(client)
        await jobs.settle([Report(await claim(jobs), end)])
        await asyncio.gather(*[client.post(f"{JOBS}/{job_id}/retry") for _ in range(8)])
        refunds = 1 if end is Outcome.FAILED else 0
        reserved, refunded = await charged(client)
        assert reserved - refunded == before[0] - before[1] + 1 - refunds
        await fail(jobs)
        await JobRefunds(database, jobs).step()
        reserved, refunded = await charged(client)
        assert reserved - refunded == before[0] - before[1] - refunds, "the second run gave its charge back"


class IsGone(RedisBroker):
    """It goes away between a reservation and the retry."""

    arrives = False

    async def retry(self, *arguments: Any, **options: Any) -> Status | None:
        if self.arrives:
            await super().retry(*arguments, **options)
        raise Unavailable("the connection was lost")


@pytest.mark.parametrize("arrives", [True, False])
async def test_a_charge_for_a_retry_whose_answer_was_lost_is_given_back_unless_it_arrived(
    database: Database, broker: PostgresBroker, registry: Registry, jobs: RedisBroker, acme: Company, arrives: bool
) -> None:
    gone = IsGone(jobs.server)
    gone.arrives = arrives
    app = api(database, broker, registry, gone)
    async with AsyncClient(transport=ASGITransport(app), base_url="http://api") as client:
        await client.patch("/companies/acme", json={"quotas": {"hour": 10}})
        job_id = await create(client)
        await finish(jobs)
        answer = await client.post(f"{JOBS}/{job_id}/retry")
        assert (answer.status_code, answer.json()["code"]) == (503, "jobs_unavailable")
        assert await charged(client) == (2, 0)
        await JobRefunds(database, jobs).step(at=datetime.now(UTC) + timedelta(minutes=2))
        assert await charged(client) == ((2, 0) if arrives else (2, 1))
        if not arrives:
            gone.arrives = True
            await client.post(f"{JOBS}/{job_id}/retry")
            assert await charged(client) == (3, 1)


class EndsMeanwhile(RedisBroker):
    """What is to be run again is run again by somebody else, on the same charge, and ends between look and retry."""

    ends: list[Outcome]

    async def retry(self, company: str, task_id: UUID, **options: Any) -> Status | None:
        if self.ends:
            await super().retry(company, task_id, reserved_at=options["reserved_at"])
            await self.settle([Report(await claim(self), self.ends.pop())])
        return await super().retry(company, task_id, **options)


@pytest.mark.parametrize("ends", [[Outcome.COMPLETED], [Outcome.FAILED], [Outcome.COMPLETED, Outcome.FAILED]])
@pytest.mark.parametrize("delay", [0, 3600])
async def test_a_job_that_ends_while_it_is_looked_at_does_not_run_again_uncharged(
    database: Database, broker: PostgresBroker, registry: Registry, jobs: RedisBroker, ends: list[Outcome], delay: int
) -> None:
    meddled = EndsMeanwhile(jobs.server)
    meddled.ends = [*ends]
    app = api(database, broker, registry, meddled)
    async with AsyncClient(transport=ASGITransport(app), base_url="http://api") as client:
        company = (await client.patch("/companies/acme", json={"quotas": {"hour": 10}})).json()["id"]
        made = await client.post(JOBS, json=JOB | {"delaySeconds": delay})
        job_id = made.json()["jobId"]
        if not delay:
            await finish(jobs)
        answer = await client.post(f"{JOBS}/{job_id}/retry")
        assert (answer.status_code, answer.json()["status"], meddled.ends) == (200, "pending", [])
        job = await jobs.job(UUID(company), UUID(job_id))
        assert job is not None
        charges = await database.fetch(select(JobReservation.reserved_at, JobReservation.confirmed))
        assert charges == [(job.reserved_at, True)]
        reserved, refunded = await charged(client)
        completed = [*ends, *([] if delay else [Outcome.COMPLETED])].count(Outcome.COMPLETED)
        assert reserved - refunded == completed + 1


async def test_a_job_that_always_ends_while_it_is_looked_at_is_left_to_the_client(
    database: Database, broker: PostgresBroker, registry: Registry, jobs: RedisBroker
) -> None:
    meddled = EndsMeanwhile(jobs.server)
    meddled.ends = [Outcome.COMPLETED] * 3
    app = api(database, broker, registry, meddled)
    async with AsyncClient(transport=ASGITransport(app), base_url="http://api") as client:
        await client.patch("/companies/acme", json={"quotas": {"hour": 10}})
        job_id = await create(client)
        await finish(jobs)
        answer = await client.post(f"{JOBS}/{job_id}/retry")
        assert (answer.status_code, answer.json()["code"]) == (409, "invalid_state")
        assert (await client.get(f"{JOBS}/{job_id}")).json()["status"] == "completed"
        assert await charged(client) == (4, 0)


async def test_a_retry_that_is_refused_costs_nothing(client: AsyncClient, jobs: RedisBroker) -> None:
    await client.patch("/companies/acme", json={"quotas": {"hour": 10}})
    job_id = await create(client)
    assert (await client.post(f"{JOBS}/{job_id}/retry")).json()["status"] == "pending"
    await claim(jobs)
    assert (await client.post(f"{JOBS}/{job_id}/retry")).json()["code"] == "invalid_state"
    assert await charged(client) == (1, 0)


# Streams.


async def test_a_stream_tells_every_move_and_ends_with_the_job(
    app: FastAPI, client: AsyncClient, address: str, jobs: RedisBroker
) -> None:
    job_id = await create(client)
    async with AsyncClient(base_url=address) as watcher:
        stream = events(watcher, job_id)
        first = await anext(stream)
        assert (first.event, first.id, first.data["status"]) == ("created", "1", "pending")
        await until_watching(app)
        held = await claim(jobs)
        assert ((await anext(stream)).event, telemetry.STREAMS_OPEN._value.get()) == ("claimed", 1)
        await jobs.settle([Report(held, Outcome.RETRY, error="no answer", delay_seconds=60)])
        retried = await anext(stream)
        assert (retried.event, retried.data["status"], retried.data["error"]) == ("retried", "scheduled", "no answer")
        await client.post(f"{JOBS}/{job_id}/cancel")
        assert [sent.event async for sent in stream] == ["cancelled"]
        assert telemetry.STREAMS_OPEN._value.get() == 0

        assert [sent.event async for sent in events(watcher, job_id, last="2")] == ["retried", "cancelled"]
        for garbled in ("", "x", "-1", "99999999999999999999"):
            assert len([sent async for sent in events(watcher, job_id, last=garbled)]) == 4
        assert (await watcher.get(f"{JOBS}/{job_id}/events", headers={"Last-Event-ID": "4"})).status_code == 204
        assert (await watcher.get(f"{JOBS}/{job_id}/events", headers={"Last-Event-ID": "400"})).status_code == 204


async def test_a_quiet_stream_is_kept_alive_until_it_is_old(
    client: AsyncClient, address: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(streams, "KEEP_ALIVE_SECONDS", 0.05)
    monkeypatch.setattr(streams, "AGE_SECONDS", 0.5)
    job_id = await create(client)
    async with AsyncClient(base_url=address, timeout=PATIENCE) as watcher:
        text = (await watcher.get(f"{JOBS}/{job_id}/events")).text
    assert text.startswith("retry: 2000\n\n")
    assert ": still here\n\n" in text
    assert text.endswith('event: bye\ndata: {"reason":"the stream is old"}\n\n')


async def test_streams_end_when_the_process_is_to_end(app: FastAPI, client: AsyncClient, address: str) -> None:
    job_id = await create(client)  # fault 170
    async with AsyncClient(base_url=address) as watcher:
        stream = events(watcher, job_id)
        assert (await anext(stream)).event == "created"
        app.state.parts.jobs.waiting.leave()
        assert [sent.data async for sent in stream] == [{"reason": "the process ends"}]
        answer = await client.get(f"{JOBS}/{job_id}/events")
        assert (answer.status_code, answer.json()["code"]) == (503, "too_many_streams")


async def test_many_streams_share_one_line_and_those_that_are_dropped_leave_nothing(
    app: FastAPI, client: AsyncClient, address: str, jobs: RedisBroker, valkey_url: str
) -> None:
    job_id = await create(client)  # fault 150
    admin = redis.Redis.from_url(valkey_url, decode_responses=True)
    waiting = app.state.parts.jobs.waiting
    async with many_streams(address, job_id, 300) as writers:
        await eventually(lambda: waiting.count == 300 and all_are_told(app))
        assert admin.pubsub_numsub(jobs.server.key("changes")) == [(jobs.server.key("changes"), 1)]
        assert (await client.get("/companies")).status_code == 200
        for writer in writers[:200]:
            writer.transport.abort()
        await eventually(lambda: waiting.count == 100)
        await finish(jobs)
        await eventually(lambda: waiting.count == 0)
    admin.close()


@asynccontextmanager
async def many_streams(address: str, job_id: str, count: int) -> AsyncIterator[list[asyncio.StreamWriter]]:
    """Streams whose head has arrived, on connections of their own."""
    url = urlsplit(address)
    writers = []
    try:
        for _ in range(count):
            reader, writer = await asyncio.open_connection(url.hostname, url.port)
            writers.append(writer)
            writer.write(f"GET {JOBS}/{job_id}/events HTTP/1.1\r\nHost: api\r\n\r\n".encode())
            assert (await reader.readline()).startswith(b"HTTP/1.1 200")
        yield writers
    finally:
        for writer in writers:
            writer.transport.abort()


# Without the broker of jobs.


async def test_without_a_broker_there_are_no_jobs(
    database: Database, broker: PostgresBroker, registry: Registry
) -> None:
    transport = ASGITransport(api(database, broker, registry, None))
    async with AsyncClient(transport=transport, base_url="http://api") as client:
        for method, path in (("POST", ""), ("GET", f"/{uuid4()}"), ("GET", f"/{uuid4()}/events")):
            answer = await client.request(method, JOBS + path, json=JOB)
            assert (answer.status_code, answer.json()["code"]) == (404, "jobs_not_configured")
            assert "TAKETURNS_REDIS_URL" in answer.json()["detail"]


async def test_while_the_broker_is_away_jobs_are_neither_lost_nor_denied(
    database: Database, broker: PostgresBroker, registry: Registry, valkey_server: Valkey
) -> None:
    server = Server(valkey_server.url, timeout=1.0)
    jobs = RedisBroker(server)
    app = api(database, broker, registry, jobs)
    async with AsyncClient(transport=ASGITransport(app), base_url="http://api", timeout=PATIENCE) as client:
        job_id = await create(client)
        valkey_server.stop()  # fault 144
        for method, path in (
            ("GET", f"/{job_id}"),
            ("GET", f"/{uuid4()}"),
            ("GET", f"/{job_id}/events"),
            ("POST", ""),
            ("POST", f"/{job_id}/cancel"),
        ):
            answer = await client.request(method, JOBS + path, json=JOB)
            assert (answer.status_code, answer.json()["code"]) == (503, "jobs_unavailable"), path
            assert answer.headers["retry-after"] == "1"
        assert (await client.patch("/companies/acme", json={"weight": 2})).status_code == 200
        made = await client.post("/companies/acme/tasks", json=JOB)
        assert made.status_code == 201
        await client.post(f"{made.headers['location']}/cancel")
        refused = await client.delete("/companies/acme")
        assert (refused.status_code, refused.json()["code"]) == (503, "jobs_unavailable")
        assert (await client.post("/companies", json={"name": "Zeta", "slug": "zeta"})).status_code == 201
        assert (await client.delete("/companies/zeta?force=true")).status_code == 204
        valkey_server.start()
        assert (await client.get(f"{JOBS}/{job_id}")).status_code == 200
        assert (await client.get(f"{JOBS}/{uuid4()}")).status_code == 404
        assert len(await jobs.claim(WORKER, queues=["default"], batch=10)) == 1  # nothing was half-created
        await create(client)
    await server.close()


class LosesAnswers(RedisBroker):
    """Its enqueues arrive, or do not; their answers never do."""

    arrives = True
    sent = 0

    async def enqueue(self, company: str, tasks: list[NewTask], **origin: object) -> list[Enqueued]:  # type: ignore[override]
        self.sent += 1
        if self.arrives:
            with suppress(Unavailable):
                await super().enqueue(company, tasks, **origin)  # type: ignore[arg-type]
        raise Unavailable("the connection was lost")


@asynccontextmanager
async def confirming(
    database: Database, broker: PostgresBroker, registry: Registry, jobs: RedisBroker
) -> AsyncIterator[AsyncClient]:
    """A client of an API whose company has a quota."""
    app = api(database, broker, registry, jobs)
    async with AsyncClient(transport=ASGITransport(app), base_url="http://api", timeout=PATIENCE) as client:
        await client.patch("/companies/acme", json={"quotas": {"hour": 2}})
        yield client
    await jobs.server.close()


async def later(database: Database, jobs: RedisBroker) -> None:
    """When it is found which of the jobs that were charged for came."""
    await JobRefunds(database, jobs).step(at=datetime.now(UTC) + timedelta(minutes=2))


def is_unconfirmed(answer: Response) -> bool:
    return (answer.status_code, answer.json()["code"], answer.headers["retry-after"]) == (503, "job_unconfirmed", "1")


async def test_a_job_that_is_not_on_the_disk_yet_is_told_as_that(
    database: Database, broker: PostgresBroker, registry: Registry, valkey: Valkeys
) -> None:
    server = valkey(appendfsync="no")
    jobs = RedisBroker(Server(server.url), wait_aof_seconds=0.05)
    async with confirming(database, broker, registry, jobs) as client:
        bare = await client.post(JOBS, json=JOB)
        assert is_unconfirmed(bare)
        assert not bare.json()["retryable"], "the same again would be another job"
        assert (await client.get(bare.headers["location"])).json()["jobId"] in bare.json()["detail"]
        key = {"Idempotency-Key": "once"}
        keyed = [await client.post(JOBS, json=JOB, headers=key) for _ in range(2)]  # the quota is used up by the second
        assert all(map(is_unconfirmed, keyed))
        assert [answer.json()["retryable"] for answer in keyed] == [True, True]
        assert keyed[0].headers["location"] == keyed[1].headers["location"] != bare.headers["location"]
        await client.patch("/companies/acme", json={"quotas": {"hour": 10}})
        assert is_unconfirmed(await client.post(JOBS, json=JOB, headers=key))
        await later(database, jobs)
        reserved, refunded = await charged(client)
        assert reserved - refunded == 2
        server.execute("CONFIG SET", "appendfsync", "always")
        again = await client.post(JOBS, json=JOB, headers=key)
        assert (again.status_code, again.headers["idempotent-replayed"]) == (200, "true")
        assert keyed[0].headers["location"].endswith(again.json()["jobId"])
        assert len(await jobs.claim(WORKER, queues=["default"], batch=10)) == 2


async def test_a_cancel_and_a_retry_that_are_not_on_the_disk_yet_are_told_as_that(
    database: Database, broker: PostgresBroker, registry: Registry, valkey: Valkeys
) -> None:
    server = valkey(appendfsync="always")
    jobs = RedisBroker(Server(server.url), wait_aof_seconds=0.05)
    async with confirming(database, broker, registry, jobs) as client:
        job_id = await create(client)
        for verb, status in (("cancel", "cancelled"), ("retry", "pending")):
            server.execute("CONFIG SET", "appendfsync", "no")
            assert is_unconfirmed(await client.post(f"{JOBS}/{job_id}/{verb}"))
            assert (await client.get(f"{JOBS}/{job_id}")).json()["status"] == status
            assert is_unconfirmed(await client.post(f"{JOBS}/{job_id}/{verb}"))
            server.execute("CONFIG SET", "appendfsync", "always")
            answer = await client.post(f"{JOBS}/{job_id}/{verb}")
            assert (answer.status_code, answer.json()["status"]) == (200, status)
            await later(database, jobs)
        assert await charged(client) == (2, 1)


async def test_a_job_that_was_found_by_its_id_is_not_told_as_safe_when_that_is_not_known(
    database: Database, broker: PostgresBroker, registry: Registry, valkey: Valkeys
) -> None:
    server = valkey(appendfsync="no")
    jobs = LosesAnswers(Server(server.url), wait_aof_seconds=0.05)
    async with confirming(database, broker, registry, jobs) as client:
        assert is_unconfirmed(await client.post(JOBS, json=JOB))
        assert (await charged(client), jobs.sent) == ((1, 0), 1)
        server.execute("CONFIG SET", "appendfsync", "always")
        assert (await client.post(JOBS, json=JOB)).status_code == 201


@pytest.mark.parametrize("arrives", [True, False])
async def test_an_enqueue_whose_answer_was_lost_is_looked_up_by_its_id(
    database: Database, broker: PostgresBroker, registry: Registry, jobs: RedisBroker, arrives: bool
) -> None:
    losing = LosesAnswers(jobs.server)
    losing.arrives = arrives
    app = api(database, broker, registry, losing)
    async with AsyncClient(transport=ASGITransport(app), base_url="http://api") as client:
        answer = await client.post(JOBS, json=JOB)
    assert (answer.status_code, losing.sent) == (201 if arrives else 503, 1)
    claimed = await jobs.claim(WORKER, queues=["default"], batch=10)
    assert [str(job.task_id) for job in claimed] == ([answer.json()["jobId"]] if arrives else [])
