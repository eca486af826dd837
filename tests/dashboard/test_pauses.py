"""Queues and types are paused on the pages, of one company or of every one, and go on when the pause is lifted."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from taketurns.companies import pauses
from taketurns.companies.directory import Company
from taketurns.storage.database import Database
from tests.dashboard.browsing import Browser, Page


@pytest.mark.parametrize(("page", "owner"), [("/companies", None), ("/companies/acme", "acme")])
@pytest.mark.parametrize(
    "named",
    [{"queue": "mail"}, {"type": "send_email"}, {"queue": "mail", "type": "send_email"}],
    ids=["queue", "type", "both"],
)
async def test_a_queue_or_a_type_is_paused_and_goes_on(
    browser: Browser, database: Database, acme: Company, page: str, owner: str | None, named: dict[str, str]
) -> None:
    path = "/companies/acme/pauses" if owner else "/dashboard/pauses"
    told = Page((await browser.submit((await browser.page(page)).form(path), **named)).text)
    standing = await pauses.standing(database, owner)
    assert standing is not None
    assert [(one.queue, one.type, one.until) for one in standing] == [(named.get("queue"), named.get("type"), None)]
    assert "It is paused." in told.text
    after = await browser.submit(told.form(f"{path}/lift"))
    assert "It goes on." in after.text
    assert await pauses.standing(database, owner) == []


async def test_a_pause_may_have_an_end(browser: Browser, database: Database, acme: Company) -> None:
    form = (await browser.page("/companies/acme")).form("/companies/acme/pauses")
    await browser.submit(form, queue="mail", **{"for": "1h"})
    (one,) = await pauses.standing(database, "acme") or []
    assert one.until is not None
    assert timedelta(minutes=59) < one.until - datetime.now(UTC) <= timedelta(hours=1)


async def test_what_names_nothing_is_told(browser: Browser, acme: Company) -> None:
    form = (await browser.page("/companies")).form("/dashboard/pauses")
    assert "name a queue, a type, or both" in (await browser.submit(form)).text
    refused = await browser.submit(form, queue="mail", **{"for": "long"})
    assert refused.status_code == 400
