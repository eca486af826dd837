"""The pages of companies: side by side, one by one, and what is set for them."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from taketurns.brokers.postgres import PostgresBroker
from taketurns.companies import directory
from taketurns.companies.directory import Company
from taketurns.dashboard import rendering
from taketurns.engine.lease import Holder
from taketurns.engine.quota import Quotas
from taketurns.engine.rate import Rate
from taketurns.engine.retention import OwnRetention
from taketurns.engine.task import NewTask, Outcome, Report
from taketurns.history import board, why
from taketurns.history.rollups import Attempts
from taketurns.storage.database import Database
from taketurns.storage.ids import new_id
from tests.dashboard.browsing import Browser, Page
from tests.waiting import PATIENCE


@pytest.fixture
async def globex(database: Database) -> Company:
    return await directory.create(database, name="Globex", slug="globex")


def names(page: Page) -> list[str]:
    rows = [tag for tag in page.all("tr") if tag.attributes.get("id", "").startswith("company-")]
    return [row.attributes["id"].removeprefix("company-") for row in rows]


async def test_who_waits_longest_comes_first(
    browser: Browser, broker: PostgresBroker, database: Database, acme: Company, globex: Company
) -> None:
    await directory.create(database, name="Aaa", slug="aaa")
    await broker.enqueue("globex", [NewTask(type="anything", payload="{}") for _ in range(2)])
    await broker.enqueue("acme", [NewTask(type="anything", payload="{}")])
    page = await browser.page("/companies")
    assert names(page) == ["globex", "acme", "aaa"]
    (row,) = [tag for tag in page.all("tr") if tag.attributes.get("id") == "company-globex"]
    assert "waiting" in row.text
    assert [link.text for link in page.all("a") if "company=globex" in link.attributes["href"]] == ["2"]


async def test_a_company_is_found_by_a_part_of_its_name(browser: Browser, acme: Company, globex: Company) -> None:
    assert names(await browser.page("/companies?q=LOBE")) == ["globex"]
    for pattern in ("%", "_", "\\"):
        assert "No company is called so" in (await browser.page(f"/companies?q={pattern}")).text


async def test_companies_are_paged(browser: Browser, database: Database) -> None:
    for number in range(103):
        await directory.create(database, name=f"Company {number}", slug=f"company-{number:03}")
    page = await browser.page("/companies")
    assert len(names(page)) == 100
    (more,) = page.all("a", rel="next")
    assert names(await browser.page(more.attributes["href"])) == ["company-100", "company-101", "company-102"]
    assert (await browser.get("/companies?offset=x")).status_code == 400


async def test_a_backlog_beyond_the_bound_says_so(
    broker: PostgresBroker, database: Database, acme: Company, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(board, "CAP", 150)
    await broker.enqueue("acme", [NewTask(type="anything", payload="{}") for _ in range(149)])
    (standing,) = await board.read(database, limit=1)
    assert (standing.backlog, standing.backlog_is_exact) == (149, True)
    await broker.enqueue("acme", [NewTask(type="anything", payload="{}")])
    (standing,) = await board.read(database, limit=1)
    assert (standing.backlog, standing.backlog_is_exact) == (150, False)


async def test_a_company_tells_what_holds_it_back(
    browser: Browser, broker: PostgresBroker, database: Database, acme: Company
) -> None:
    assert "Nothing holds it back" in (await browser.page("/companies/acme")).text
    await broker.enqueue("acme", [NewTask(type="anything", payload="{}")])
    page = await browser.page("/companies/acme")
    assert "Its next task waits because no living worker serves the queue" in page.text
    await directory.change(database, "acme", {"paused": True})
    assert "It is paused" in (await browser.page("/companies/acme")).text


async def test_what_holds_a_company_back_is_told_of_the_task_whose_turn_it_is(
    broker: PostgresBroker, database: Database, acme: Company
) -> None:
    await broker.enqueue("acme", [NewTask(type="anything", payload="{}") for _ in range(5)])
    (first,) = await broker.claim(new_id(), queues=["default"], batch=1)
    await broker.settle([Report(first, Outcome.RETRY, error="no", delay_seconds=0.001)])
    assert (await broker.promote(at=datetime.now(UTC) + timedelta(seconds=5))).count == 1
    reason = await why.of_company(database, acme.id)
    assert reason is not None
    assert reason.facts.tasks_ahead == 0


async def test_a_company_is_paused_for_a_while_and_resumed(browser: Browser, database: Database, acme: Company) -> None:
    page = await browser.page("/companies/acme")
    answer = await browser.submit(page.form("/pause"), **{"for": "1h"})
    assert "paused for 1h" in Page(answer.text).text
    found = await directory.find(database, "acme")
    assert found is not None
    assert found.paused_until is not None
    answer = await browser.submit(Page(answer.text).form("/resume"))
    assert "goes on" in Page(answer.text).text
    found = await directory.find(database, "acme")
    assert found is not None
    assert not found.paused
    refused = await browser.submit(page.form("/pause"), **{"for": "a while"})
    assert refused.status_code == 400


async def test_weight_and_limits_are_set_and_taken_away(browser: Browser, database: Database, acme: Company) -> None:
    form = (await browser.page("/companies/acme")).form("/change")
    answer = await browser.submit(
        form,
        weight="5",
        max_in_flight="3",
        max_queued="1,000",
        rate_tasks="10",
        rate_seconds="60",
        rate_burst="2",
        quota_hour="100",
        request_rate_requests="600",
        request_rate_seconds="60",
        keep_failed="90d",
        keep_completed="36h",
    )
    assert "Saved." in Page(answer.text).text
    found = await directory.find(database, "acme")
    assert found is not None
    assert (found.weight, found.max_in_flight, found.max_queued) == (5, 3, 1000)
    assert (found.rate, found.quotas) == (Rate(10, 60, 2), Quotas(hour=100))
    assert found is not None
    assert found.request_rate == Rate(600, 60, 600)
    assert found.retention == OwnRetention(completed=36 * 3600, failed=90 * 86_400)
    form = Page(answer.text).form("/change")
    assert form.fields["rate_burst"] == "2"
    assert [form.fields[f"keep_{ending}"] for ending in ("completed", "failed", "cancelled")] == ["36h", "90d", ""]
    await browser.submit(form, **dict.fromkeys(set(form.fields) - {"token", "weight"}, ""))
    found = await directory.find(database, "acme")
    assert found is not None
    assert (found.weight, found.max_in_flight, found.max_queued, found.rate) == (5, None, None, None)
    assert (found.quotas, found.request_rate, found.retention) == (Quotas(), None, OwnRetention())


@pytest.mark.parametrize(
    "wrong",
    [
        {"weight": ""},
        {"weight": "0"},
        {"weight": "101"},
        {"weight": "many"},
        {"max_in_flight": "0"},
        {"max_in_flight": "-1"},
        {"rate_tasks": "5"},
        {"rate_tasks": "5", "rate_seconds": "0"},
        {"quota_month": "99999999999"},
        {"quota_day": "9" * 40},
    ],
)
async def test_a_limit_that_cannot_be_is_told_beside_what_was_typed(
    browser: Browser, database: Database, acme: Company, wrong: dict[str, str]
) -> None:
    form = (await browser.page("/companies/acme")).form("/change")
    answer = await browser.submit(form, **wrong)
    page = Page(answer.text)
    assert answer.status_code == 422
    (complaint,) = [tag for tag in page.all("p") if tag.attributes.get("class") == "complaint"]
    assert complaint.text
    assert wrong.items() <= page.form("/change").fields.items()
    found = await directory.find(database, "acme")
    assert found is not None
    assert found.updated_at == acme.updated_at


async def test_a_company_is_taken_in_and_deleted(browser: Browser, database: Database, broker: PostgresBroker) -> None:
    answer = await browser.submit((await browser.page("/companies")).form("/companies"), name="Umbrella", slug="")
    assert str(answer.url).endswith("/companies/umbrella")
    taken = await browser.submit(
        (await browser.page("/companies")).form("/companies"), name="Other <b>", slug="umbrella"
    )
    assert taken.status_code == 422
    assert "umbrella" in Page(taken.text).all("p", role="alert")[0].text
    assert Page(taken.text).form("/companies").fields["name"] == "Other <b>"
    assert "open" in Page(taken.text).all("details", **{"class": "opens"})[0].attributes
    await broker.enqueue("umbrella", [NewTask(type="anything", payload="{}")])
    form = (await browser.page("/companies/umbrella")).form("/delete")
    assert "Nothing was deleted" in (await browser.submit(form, slug="other")).text
    assert "scheduled, pending or processing" in (await browser.submit(form, slug="umbrella")).text
    await browser.submit(form, slug="umbrella", force="yes")
    assert await directory.find(database, "umbrella") is None


async def test_fairness_is_between_those_who_wait_and_not_who_asks_for_little(
    browser: Browser, broker: PostgresBroker, database: Database, acme: Company, globex: Company
) -> None:
    worker_id, line = new_id(), broker.lease_line(patience_seconds=PATIENCE)
    line.take(worker_id, Holder(queues=("default",), types=(), concurrency=9, name="one"), former=None)
    await directory.create(database, name="Initech", slug="initech")
    await broker.enqueue("initech", [NewTask(type="anything", payload="{}")])
    for company in ("acme", "globex"):
        await broker.enqueue(company, [NewTask(type="anything", payload="{}") for _ in range(20)])
    await broker.claim(worker_id, queues=["default"], batch=9)
    assert fairness(await browser.page("/")) == "1.00"
    await directory.change(database, "acme", {"weight": 100})
    assert fairness(await browser.page("/")) < "0.60"
    line.close()


def fairness(page: Page) -> str:
    return next(tag.text for tag in page.all("li") if tag.text.startswith("Fairness")).removeprefix("Fairness")[:4]


async def test_charts_are_made_of_roll_ups_and_can_be_read_as_tables(
    browser: Browser, broker: PostgresBroker, database: Database, acme: Company, globex: Company
) -> None:
    attempts = Attempts(database)
    await broker.enqueue("acme", [NewTask(type="anything", payload="{}") for _ in range(4)])
    await broker.enqueue("globex", [NewTask(type="anything", payload="{}")])
    for task in await broker.claim(new_id(), queues=["default"], batch=10):
        report = Report(task, Outcome.FAILED if task.company_id == globex.id else Outcome.COMPLETED)
        await broker.settle([report])
        attempts.add([report])
    await attempts.step()
    for path, sums in (
        ("/companies/acme", {"completed": 4, "failed": 0}),
        ("/companies/globex?span=15m", {"completed": 0, "failed": 1}),
        ("/?span=24h", {"completed": 4, "failed": 1}),
        ("/?span=7d", {"company-2": 4}),
    ):
        page = await browser.page(path)
        looks = [tag.attributes["data-look"] for tag in page.all("th") if "data-look" in tag.attributes]
        assert set(sums) <= set(looks)
        assert "Show as table" in page.text
    assert total(await browser.page("/companies/acme"), "outcomes") == 4
    assert "fail" in (await browser.page("/")).text
    assert (await browser.get("/?span=2y")).status_code == 400


def total(page: Page, chart: str) -> float:
    (figure,) = page.all("figure", id=chart)
    assert figure.text
    (first,) = [number for number, tag in enumerate(page.tags) if tag is figure]
    values = []
    for tag in page.tags[first + 1 :]:
        if tag.name == "figure":
            break
        values.append(float(tag.attributes.get("data-value") or 0))
    return sum(values)


async def test_what_wants_attention_is_said_in_words(
    browser: Browser, broker: PostgresBroker, database: Database, acme: Company
) -> None:
    assert "Nothing needs attention" in (await browser.page("/")).text
    await broker.enqueue("acme", [NewTask(type="anything", payload="{}") for _ in range(2)])
    assert "2 tasks wait, and no worker is up." in (await browser.page("/")).text
    await directory.change(database, "acme", {"paused": True})
    assert "Acme is paused, and 2 of its tasks wait." in (await browser.page("/")).text


async def test_without_companies_the_pages_say_what_to_do(browser: Browser) -> None:
    assert "No companies yet" in (await browser.page("/")).text
    assert "Take the first one in" in (await browser.page("/companies")).text
    assert "No tasks yet" in (await browser.page("/tasks")).text
    assert "No worker was ever here" in (await browser.page("/workers")).text
    assert "Nothing has failed for good" in (await browser.page("/failures")).text
    assert "No schedules" in (await browser.page("/schedules")).text
    assert "No worker is up" in (await browser.page("/live")).text


async def test_what_was_is_never_told_as_yet_to_come() -> None:
    now = datetime.now(UTC)
    later = now + timedelta(seconds=90)
    assert ">just now<" in rendering.ago(later, now)
    assert ">1 min 30 s ago<" in rendering.ago(now, later)
    assert ">in 1 min 30 s<" in rendering.ahead(later, now)


async def test_quotas_are_told_where_there_are_any(browser: Browser, database: Database, acme: Company) -> None:
    assert "None is set, and what is submitted is not counted." in (await browser.page("/companies/acme")).text
    await directory.change(database, "acme", {"quotas": Quotas(day=10)})
    assert "This day" in (await browser.page("/companies/acme")).text
