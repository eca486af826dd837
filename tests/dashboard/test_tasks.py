"""The pages of tasks: found by filters, paged, looked at, changed."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta

import pytest

from taketurns.brokers.postgres import PostgresBroker
from taketurns.companies import directory
from taketurns.companies.directory import Company
from taketurns.dashboard import tasks as pages
from taketurns.engine.task import NewTask, Outcome, Report, Status
from taketurns.history import everywhere, tasks
from taketurns.history.tasks import Filter
from taketurns.operations import ledger
from taketurns.storage.database import Database
from taketurns.storage.ids import new_id
from tests.dashboard.browsing import Browser, Page


@pytest.fixture
async def globex(database: Database) -> Company:
    return await directory.create(database, name="Globex", slug="globex")


def new(type: str = "anything", **options: object) -> NewTask:
    return NewTask(type=type, payload="{}", **options)  # type: ignore[arg-type]


async def ended(broker: PostgresBroker, outcome: Outcome, *, error: str | None = None) -> None:
    claimed = await broker.claim(new_id(), queues=["default"], batch=100)
    await broker.settle([Report(task, outcome, error=error) for task in claimed])


def shown(page: Page) -> list[str]:
    return [tag.attributes["id"].removeprefix("task-") for tag in page.all("tr") if tag.attributes.get("id")]


async def test_the_tasks_of_all_companies_are_one_list_the_newest_first(
    browser: Browser, broker: PostgresBroker, acme: Company, globex: Company
) -> None:
    made = []
    for number in range(2 * pages.LIMIT + 7):
        made += await broker.enqueue("acme" if number % 3 else "globex", [new()])
    page = await browser.page("/tasks")
    seen = shown(page)
    while older := page.all("a", rel="next"):
        page = await browser.page(older[0].attributes["href"])
        seen += shown(page)
    assert seen == [str(task.task_id) for task in reversed(made)]


async def test_a_list_is_narrowed_by_every_filter(
    browser: Browser, broker: PostgresBroker, acme: Company, globex: Company
) -> None:
    (failed,) = await broker.enqueue("acme", [new()])
    await ended(broker, Outcome.FAILED, error="ValueError: no")
    (later,) = await broker.enqueue("acme", [new(delay_seconds=3600.0)])
    (mail,) = await broker.enqueue("acme", [new("send_email", queue="mail", tags=("red",))])
    (other,) = await broker.enqueue("globex", [new(tags=("red",))])
    for query, expected in (
        ("company=acme", [mail, later, failed]),
        ("status=failed", [failed]),
        ("company=acme&status=failed&status=scheduled", [later, failed]),
        ("type=send_email", [mail]),
        ("queue=mail", [mail]),
        ("company=acme&queue=mail&status=pending", [mail]),
        ("queue=mail&status=failed", []),
        ("tag=red", [other, mail]),
        ("tag=red&company=globex", [other]),
        ("company=acme&tag=red&queue=default", []),
        ("since=15m", [other, mail, later, failed]),
        (f"company={acme.id}&since=1h&status=scheduled&type=anything", [later]),
    ):
        page = await browser.page(f"/tasks?{query}")
        assert shown(page) == [str(task.task_id) for task in expected], query
    assert "No task fits" in (await browser.page("/tasks?tag=blue")).text


@pytest.mark.parametrize(
    "query", ["status=lost", "since=1y", "after=x", "after=01234567", "company=Nobody%20else", "company=nobody"]
)
async def test_what_cannot_be_asked_for_is_told(browser: Browser, acme: Company, query: str) -> None:
    answer = await browser.get(f"/tasks?{query}")
    assert answer.status_code in {400, 404}


async def test_a_character_that_cannot_be_stored_is_no_fault_of_ours(browser: Browser, acme: Company) -> None:
    for query in ("type=%00", "tag=%00", "company=acme&queue=%00", "error=%00&company=acme"):
        assert (await browser.get(f"/tasks?{query}")).status_code in {200, 400}
    assert (await browser.get("/companies?q=%00")).status_code in {200, 400}


async def test_counts_stand_beside_the_statuses(browser: Browser, broker: PostgresBroker, acme: Company) -> None:
    await broker.enqueue("acme", [new() for _ in range(3)])
    await broker.enqueue("acme", [new(delay_seconds=60.0)])
    for path in ("/tasks", "/tasks?company=acme"):
        page = await browser.page(path)
        told = {
            tag.attributes.get("class"): tag.text.split()
            for tag in page.all("a")
            if "status=" in tag.attributes.get("href", "")
        }
        assert told["pending"][-1] == "3"
        assert told["scheduled"][-1] == "1"


async def test_a_task_tells_why_it_waits_and_what_happened(
    browser: Browser, broker: PostgresBroker, acme: Company
) -> None:
    (made,) = await broker.enqueue("acme", [new()])
    page = await browser.page(f"/companies/acme/tasks/{made.task_id}")
    assert "because no living worker serves the queue" in page.text
    await ended(broker, Outcome.FAILED, error="ValueError: no such thing")
    page = await browser.page(f"/companies/{acme.id}/tasks/{made.task_id}")
    assert "ValueError: no such thing" in page.text
    assert "Why is it waiting?" not in page.text
    timeline = [tag.text for tag in page.all("li") if tag.attributes.get("class") in set(Status)]
    assert [text.split()[0] for text in timeline if text.split()] == ["created", "claimed", "failed"]


async def test_a_task_is_cancelled_run_again_and_forgotten(
    browser: Browser, broker: PostgresBroker, acme: Company, database: Database
) -> None:
    (made,) = await broker.enqueue("acme", [new()])
    path = f"/companies/acme/tasks/{made.task_id}"
    answer = await browser.confirm((await browser.page(path)).form("/cancel"))
    assert "The task is cancelled." in Page(answer.text).text
    assert str(answer.url).endswith(path)
    answer = await browser.submit(Page(answer.text).form("/retry"))
    assert "runs again" in Page(answer.text).text
    assert "runs again" not in (await browser.page(path)).text  # it is told once
    found = await tasks.find(database, "acme", made.task_id)
    assert found is not None
    assert found.status is Status.PENDING
    await browser.confirm((await browser.page(path)).form("/cancel"))
    answer = await browser.confirm((await browser.page(path)).form("/delete"))
    assert "forgotten" in Page(answer.text).text
    assert (await browser.get(path)).status_code == 404


async def test_what_cannot_be_done_is_told_and_nothing_is_done(
    browser: Browser, broker: PostgresBroker, acme: Company
) -> None:
    (made,) = await broker.enqueue("acme", [new()])
    form = (await browser.page(f"/companies/acme/tasks/{made.task_id}")).form("/cancel")
    await ended(broker, Outcome.COMPLETED)
    answer = await browser.confirm(form)
    assert "only a task that has not can be cancelled" in Page(answer.text).text


async def test_a_payload_that_was_edited_makes_another_task(
    browser: Browser, broker: PostgresBroker, acme: Company, database: Database
) -> None:
    (made,) = await broker.enqueue("acme", [new("send_email", queue="mail", tags=("red",), priority=1)])
    path = f"/companies/acme/tasks/{made.task_id}"
    form = (await browser.page(path)).form("/edited")
    answer = await browser.submit(form, payload='{"to": "ada@acme.example"}')
    assert "This is a new task" in Page(answer.text).text
    newest, _ = (await tasks.page(database, acme.id, Filter(), limit=2) or tasks.Page()).tasks
    assert newest.id != made.task_id
    assert (newest.type, newest.queue, newest.priority, newest.tags) == ("send_email", "mail", 1, ["red"])
    assert json.loads(newest.payload) == {"to": "ada@acme.example"}


@pytest.mark.parametrize(
    ("payload", "complaint"),
    [
        ("{", "not JSON"),
        ('{"to": 1}', "string"),
        ('{"to": "a"}, "queue": "other"', "not JSON"),
        ("[" * 100_000, "not JSON"),
        ('{"to": "\\u0000"}', "U+0000"),
        ('{"to": NaN}', ""),
    ],
)
async def test_a_payload_that_does_not_fit_stays_in_its_field_with_what_is_wrong(
    browser: Browser, broker: PostgresBroker, acme: Company, payload: str, complaint: str
) -> None:
    (made,) = await broker.enqueue("acme", [new("send_email", queue="mail")])
    form = (await browser.page(f"/companies/acme/tasks/{made.task_id}")).form("/edited")
    answer = await browser.submit(form, payload=payload)
    page = Page(answer.text)
    assert answer.status_code == 422
    (area,) = page.all("textarea")
    assert area.text.strip() == payload
    assert complaint in page.text


async def test_all_that_match_are_changed_once_their_number_was_seen(
    browser: Browser, broker: PostgresBroker, acme: Company, globex: Company
) -> None:
    await broker.enqueue("acme", [new() for _ in range(5)])
    await ended(broker, Outcome.FAILED, error="boom")
    await broker.enqueue("acme", [new()])
    page = await browser.page("/tasks?company=acme&status=failed")
    asked = await browser.submit(page.form("/tasks/change"), kind="retry")
    assert "5 tasks of acme are to be run again" in Page(asked.text).text
    begun = await browser.submit(Page(asked.text).form("/tasks/change"))
    assert "/companies/acme/operations/" in str(begun.url)
    assert "The operation is under way." in Page(begun.text).text
    aborted = await browser.confirm(Page(begun.text).form("/abort"))
    assert "aborted" in Page(aborted.text).text


async def test_all_that_match_are_put_off_together(
    browser: Browser, broker: PostgresBroker, database: Database, acme: Company
) -> None:
    await broker.enqueue("acme", [NewTask(type="anything", payload="{}") for _ in range(3)])
    page = await browser.page("/tasks?company=acme&status=pending")
    asked = Page((await browser.submit(page.form("/tasks/change"), kind="reschedule")).text)
    assert "3 tasks of acme are to be put off" in asked.text
    wrong = await browser.submit(asked.form("/tasks/change"), run_after="soon")
    assert (wrong.status_code, "A time is now, a length such as 30m" in wrong.text) == (422, True)
    begun = await browser.submit(Page(wrong.text).form("/tasks/change"), run_after="2d")
    assert "The operation is under way." in begun.text
    (operation,) = await ledger.latest(database, limit=10)
    assert operation.kind == "reschedule"
    assert operation.run_after is not None
    assert operation.run_after - operation.created_at > timedelta(days=1.9)


async def test_a_task_that_waits_is_put_off_to_a_time_and_brought_forward(
    browser: Browser, broker: PostgresBroker, database: Database, acme: Company
) -> None:
    (made,) = await broker.enqueue("acme", [NewTask(type="anything", payload="{}")])
    path = f"/companies/acme/tasks/{made.task_id}"
    form = (await browser.page(path)).form("/reschedule")
    wrong = await browser.submit(form, run_after="tomorrow")
    assert wrong.status_code == 422
    assert "A time is now" in Page(wrong.text).text
    assert Page(wrong.text).form("/reschedule").fields["run_after"] == "tomorrow"
    put_off = await browser.submit(form, run_after="2035-01-31 12:00")
    assert "The task waits for that time." in put_off.text
    assert "2035-01-31T12:00" in put_off.text
    await browser.submit(Page(put_off.text).form("/reschedule"), run_after="now")
    record = await tasks.find(database, acme.id, made.task_id)
    assert record is not None
    assert record.run_after.year < 2035


async def test_a_large_change_is_confirmed_by_its_number(
    browser: Browser, broker: PostgresBroker, acme: Company
) -> None:
    await broker.enqueue("acme", [new() for _ in range(1_000)])
    await broker.enqueue("acme", [new()])
    page = await browser.page("/tasks?company=acme&status=pending")
    asked = await browser.submit(page.form("/tasks/change"), kind="cancel")
    form = Page(asked.text).form("/tasks/change")
    again = await browser.submit(form, typed="1000")
    assert "/operations/" not in str(again.url)
    begun = await browser.submit(form, typed="1,001")
    assert "/operations/" in str(begun.url)


async def test_only_those_selected_are_changed(
    browser: Browser, broker: PostgresBroker, acme: Company, database: Database
) -> None:
    made = await broker.enqueue("acme", [new() for _ in range(3)])
    page = await browser.page("/tasks?company=acme")
    asked = await browser.submit(page.form("/tasks/change"), kind="cancel", task=str(made[1].task_id))
    assert "1 task of acme is to be cancelled" in Page(asked.text).text


async def test_a_page_of_a_task_tells_how_its_time_divides(
    browser: Browser, broker: PostgresBroker, acme: Company
) -> None:
    (made,) = await broker.enqueue("acme", [new(run_after=datetime.now(UTC) + timedelta(days=1))])
    path = f"/companies/acme/tasks/{made.task_id}"
    assert "for its time" in (await browser.page(path)).text
    (other,) = await broker.enqueue("acme", [new()])
    await ended(broker, Outcome.COMPLETED)
    page = await browser.page(f"/companies/acme/tasks/{other.task_id}")
    assert "in a worker’s hands" in page.text
    assert "for its time" not in page.text
    widths = [float(tag.attributes["width"]) for tag in page.all("rect") if tag.attributes["class"] in list(Status)]
    assert sum(widths) == pytest.approx(1000, abs=1)


async def test_all_of_a_queue_are_not_mistaken_for_all(browser: Browser, broker: PostgresBroker, acme: Company) -> None:
    made = await broker.enqueue("acme", [new(queue="mail"), new(queue="other")])
    form = (await browser.page("/tasks?company=acme&queue=mail")).form("/tasks/change")
    refused = await browser.submit(form, kind="cancel")
    assert refused.status_code == 400
    assert "Select the tasks" in Page(refused.text).text
    asked = await browser.submit(form, kind="cancel", task=str(made[0].task_id))
    assert "1 task of acme is to be cancelled" in Page(asked.text).text


@pytest.mark.parametrize("made_by", ["new", "edited"])
async def test_a_form_that_is_sent_twice_makes_one_task(
    browser: Browser, broker: PostgresBroker, database: Database, acme: Company, made_by: str
) -> None:
    (made,) = await broker.enqueue("acme", [new()])
    page, form_of = "/tasks/new?company=acme&type=anything", "/dashboard/tasks"
    if made_by == "edited":
        page, form_of = f"/companies/acme/tasks/{made.task_id}", "/edited"
    form = (await browser.page(page)).form(form_of)
    first, second = [await browser.submit(form, payload='{"value": 1}') for _ in range(2)]
    assert first.url == second.url
    another = await browser.submit(form, payload='{"value": 2}')
    assert another.url != first.url
    found = await tasks.page(database, acme.id, Filter(), limit=9)
    assert found is not None
    assert len(found.tasks) == 3


async def test_a_page_of_all_companies_goes_no_further_than_what_was_looked_at(
    database: Database, broker: PostgresBroker, acme: Company, globex: Company
) -> None:
    for _ in range(4):
        await broker.enqueue("acme", [new()])
        await broker.enqueue("globex", [new("send_email")])
    seen = []
    after = None
    while True:
        page = await everywhere.page(database, Filter(types=frozenset({"anything"})), limit=3, after=after)
        seen += [task.id for task in page.tasks]
        after = page.next_after
        if after is None:
            break
    assert len(seen) == len(set(seen)) == 4
    assert seen == sorted(seen, reverse=True)


async def test_times_are_told_in_utc_whatever_the_server_s_zone(
    browser: Browser, broker: PostgresBroker, acme: Company
) -> None:
    (made,) = await broker.enqueue("acme", [new(run_after=datetime.now(UTC) + timedelta(days=1))])
    page = await browser.page(f"/companies/acme/tasks/{made.task_id}")
    for tag in page.all("time"):
        assert tag.attributes["datetime"].endswith("Z")
        assert tag.attributes["title"].endswith("UTC")
