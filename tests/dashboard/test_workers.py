"""The page of workers: what each does and what is wanted of it, and the orders that an operator gives there."""

from __future__ import annotations

from uuid import UUID

import pytest

from taketurns.brokers.postgres import PostgresBroker
from taketurns.brokers.postgres.heartbeats import Heartbeats
from taketurns.engine.lease import Holder, Kind
from taketurns.engine.orders import Wanted, WorkerState
from taketurns.storage.database import Database
from taketurns.storage.ids import new_id
from tests.dashboard.browsing import Browser, Page


def start(broker: PostgresBroker, name: str, *, kind: Kind = Kind.WORKER) -> UUID:
    line, worker_id = broker.lease_line(patience_seconds=5), new_id()
    line.take(worker_id, Holder(queues=("mail",), types=(), concurrency=4, name=name, kind=kind), former=None)
    line.close()
    return worker_id


def beat(broker: PostgresBroker, worker_id: UUID, state: WorkerState) -> Wanted | None:
    line = broker.lease_line(patience_seconds=5)
    told = line.beat(worker_id, seconds_since_claim=None, state=state)
    line.close()
    return None if told is None else told.wanted


def questions(page: Page) -> list[str]:
    return [form.fields["question"] for form in page.forms if "question" in form.fields]


@pytest.mark.parametrize("name", ["mail", "host.example:4711", "a name/with a slash", "<b>%2e?#&"])
async def test_a_worker_is_drained_resumed_and_stopped_on_its_page(
    browser: Browser, broker: PostgresBroker, name: str
) -> None:
    worker_id = start(broker, name)
    page = await browser.page("/workers")
    told = await browser.confirm(page.form("/drain"))
    assert "It is told to take no more turns." in told.text
    assert "told to drain" in told.text
    assert beat(broker, worker_id, WorkerState.DRAINING) is Wanted.DRAIN
    page = await browser.page("/workers")
    assert "draining" in page.text
    assert "told to" not in page.text
    await browser.submit(page.form("/resume"))
    assert beat(broker, worker_id, WorkerState.RUNNING) is Wanted.RUN
    page = await browser.page("/workers")
    await browser.confirm(page.form("/stop"))
    assert beat(broker, worker_id, WorkerState.STOPPING) is Wanted.STOP
    page = await browser.page("/workers")
    assert "stopping" in page.text
    assert [form for form in page.forms if "/workers/" in form.action] == []
    refused = await browser.post(f"/workers/{worker_id}/resume", {"token": await browser.token()})
    assert refused.is_redirect
    assert "was told to stop" in (await browser.page("/workers")).text


async def test_orders_are_confirmed_and_say_whom_they_are_for(browser: Browser, broker: PostgresBroker) -> None:
    start(broker, "mail")
    (drain, stop) = questions(await browser.page("/workers"))
    assert drain.startswith("Drain mail? No more turns are taken until Resume;")
    assert stop.startswith("Stop mail? The process ends once what it runs has ended")
    assert "No other worker takes turns now." in drain
    start(broker, "mail")
    start(broker, "other")
    asked = questions(await browser.page("/workers"))
    assert any(told.startswith("Drain the 2 processes of mail?") for told in asked)
    assert not any("No other worker" in told for told in asked)


async def test_what_ends_by_itself_is_given_no_orders(browser: Browser, broker: PostgresBroker) -> None:
    start(broker, "nightly", kind=Kind.PASS)
    page = await browser.page("/workers")
    assert "nightly" in page.text
    assert [form for form in page.forms if "/workers/" in form.action] == []


async def test_who_takes_turns_of_jobs_is_told_apart_everywhere(
    browser: Browser, broker: PostgresBroker, database: Database
) -> None:
    start(broker, "mail")
    holder = Holder(queues=("mail",), types=(), concurrency=4, name="quick")
    of_jobs = Heartbeats(
        database,
        holder,
        last_claim_at=lambda: None,
        worker_id=new_id,
        standing=lambda: (Wanted.RUN, WorkerState.RUNNING),
        every_seconds=5,
    )
    await of_jobs.step()
    page = await browser.page("/workers")
    rows = {row.text.split()[0]: " ".join(row.text.split()) for row in page.all("tr") if "id" in row.attributes}
    assert "for jobs" in rows["quick"]
    assert "for jobs" not in rows["mail"]
    assert sum("No other worker takes turns now." in told for told in questions(page)) == 4
    (tile,) = [tile.text.split() for tile in (await browser.page("/")).all("a") if tile.text.startswith("Workers1")]
    assert " ".join(tile) == "Workers1all heard of, 1 more for jobs"
