"""Tasks and schedules are made on pages, and what cannot be is told beside what was typed."""

from __future__ import annotations

import json

import pytest

from taketurns.companies.directory import Company
from taketurns.history import tasks
from taketurns.history.tasks import Filter
from taketurns.schedules import timetable
from taketurns.storage.database import Database
from tests.dashboard.browsing import Browser, Page

GOOD = {
    "company": "acme",
    "name": "weekly",
    "type": "anything",
    "expression": "0 9 * * 1",
    "time_zone": "Europe/Berlin",
}


async def test_a_schedule_is_made_and_changed_with_every_digit_of_its_payload(
    browser: Browser, database: Database, acme: Company
) -> None:
    form = (await browser.page("/schedules/new?company=acme")).form("/dashboard/schedules")
    assert (form.fields["company"], form.fields["time_zone"]) == ("acme", "UTC")
    told = await browser.submit(form, **GOOD, payload='{"value": 9007199254740993}', missed="skip")
    assert "weekly" in Page(told.text).text
    (one,) = await timetable.of_all(database, limit=2)
    assert (one.name, one.expression, one.time_zone, one.missed) == ("weekly", "0 9 * * 1", "Europe/Berlin", "skip")
    page = await browser.page(f"/companies/acme/schedules/{one.id}/change")
    (area,) = page.all("textarea")
    assert "9007199254740993" in area.text
    changes = {"expression": "0 10 * * 1", "queue": "mail", "payload": area.text}
    await browser.submit(page.form("/change"), **changes, missed="skip")
    (one,) = await timetable.of_all(database, limit=2)
    assert (one.expression, one.queue) == ("0 10 * * 1", "mail")
    assert json.loads(one.payload) == {"value": 9007199254740993}


@pytest.mark.parametrize(
    ("wrong", "told"),
    [
        ({"expression": "every day"}, "cron expression"),
        ({"time_zone": "Mars/Olympus"}, "time zone"),
        ({"type": "unheard of"}, "type"),
        ({"payload": "{"}, "not JSON"),
        ({"payload": "[1]"}, "a JSON object"),
        ({"name": ""}, "name"),
    ],
)
async def test_a_schedule_that_cannot_be_is_told_beside_what_was_typed(
    browser: Browser, database: Database, acme: Company, wrong: dict[str, str], told: str
) -> None:
    form = (await browser.page("/schedules/new")).form("/dashboard/schedules")
    answer = await browser.submit(form, **{**GOOD, "missed": "last", "payload": "{}", **wrong})
    page = Page(answer.text)
    assert answer.status_code == 422
    (complaint,) = page.all("p", role="alert")
    assert told in complaint.text
    fields = page.form("/dashboard/schedules").fields | {"payload": page.all("textarea")[0].text.strip()}
    assert fields.items() >= wrong.items()
    assert await timetable.of_all(database, limit=1) == []


async def test_a_task_is_created_on_a_page(browser: Browser, database: Database, acme: Company) -> None:
    form = (await browser.page("/tasks/new?company=acme&type=anything")).form("/dashboard/tasks")
    told = await browser.submit(form, payload='{"value": 1}', queue="mail", run_after="2h")
    assert "The task is created." in told.text
    page = await tasks.page(database, acme.id, Filter(), limit=2)
    assert page is not None
    (task,) = page.tasks
    assert (task.type, task.queue, task.status) == ("anything", "mail", "scheduled")
    assert json.loads(task.payload) == {"value": 1}
    for wrong in ({"run_after": "soon"}, {"payload": "1"}, {"type": "unheard of"}):
        answer = await browser.submit(form, **wrong)
        assert answer.status_code == 422
        assert Page(answer.text).all("p", role="alert")[0].text
    assert (await browser.submit(form, company="nobody")).status_code == 404
