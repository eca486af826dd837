"""What only a browser can tell: that scripts run under the policy, keys do what they say, and pages stay up to date."""

from __future__ import annotations

import os
import shutil
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from itertools import product
from typing import TYPE_CHECKING, Any, Literal

import pytest
from fastapi import FastAPI

from taketurns.brokers.postgres import PostgresBroker
from taketurns.companies import directory
from taketurns.companies.directory import Company
from taketurns.engine.key import Role
from taketurns.engine.lease import Holder
from taketurns.engine.task import ClaimedTask, NewTask, Outcome, Report
from taketurns.history.rollups import Attempts
from taketurns.storage.database import Database
from taketurns.storage.ids import new_id
from tests.api.keyed import House
from tests.api.servers import served
from tests.waiting import PATIENCE

if TYPE_CHECKING:
    from playwright.async_api import Browser, Page

CHROMIUM = shutil.which("chromium")
IS_NEEDED = "TAKETURNS_TEST_BROWSER" in os.environ

if IS_NEEDED:
    from axe_playwright_python.async_playwright import Axe
    from playwright import async_api
else:
    async_api = pytest.importorskip("playwright.async_api", reason="make browser installs playwright")
    Axe = pytest.importorskip("axe_playwright_python.async_playwright", reason="make browser installs it").Axe

pytestmark = [
    pytest.mark.browser,
    pytest.mark.skipif(
        CHROMIUM is None and not IS_NEEDED, reason="there is no chromium here: apt-get install chromium"
    ),
]
PAGES = (
    "/",
    "/tasks",
    "/companies",
    "/companies/acme",
    "/live",
    "/workers",
    "/schedules",
    "/failures",
    "/operations",
    "/settings",
    "/search",
)
WCAG = {
    "runOnly": ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "wcag22aa", "best-practice"],
    "resultTypes": ["violations"],
}
SCHEMES: tuple[Literal["light", "dark"], ...] = ("light", "dark")
EVERY = 3_000  # milliseconds, between two looks of a page at what has changed
TO_COMPLAIN_OF = frozenset({"error", "warning"})


@pytest.fixture(scope="module")
async def chromium() -> AsyncIterator[Browser]:
    """One browser for all, which takes its time to start; each test has a profile of its own in it."""
    async with async_api.async_playwright() as playwright:
        browser = await playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        try:
            yield browser
        finally:
            await browser.close()


@asynccontextmanager
async def looking(chromium: Browser, app: FastAPI, *, is_error: bool = False, **options: Any) -> AsyncIterator[Page]:
    """A page of a browser on a real server; whatever it complains of fails the test, but for what `is_error`."""
    complaints: list[str] = []
    async with served(app) as address:
        context = await chromium.new_context(base_url=f"{address}/dashboard/", **options)
        context.set_default_timeout(PATIENCE * 1000)
        page = await context.new_page()
        page.on("console", lambda told: complaints.append(told.text) if told.type in TO_COMPLAIN_OF else None)
        page.on("pageerror", lambda error: complaints.append(str(error)))
        try:
            yield page
        finally:
            app.state.dashboard.leave()
            await context.close()
    assert [told for told in complaints if not (is_error and "Failed to load resource" in told)] == []


@pytest.fixture
async def furnished(database: Database, broker: PostgresBroker, acme: Company) -> None:
    await directory.create(database, name="Globex", slug="globex")
    attempts = Attempts(database)
    for outcome in (Outcome.COMPLETED, Outcome.FAILED):
        await broker.enqueue("acme", [NewTask(type="anything", payload='{"value": 1}') for _ in range(3)])
        for task in await broker.claim(new_id(), queues=["default"], batch=10):
            report = Report(task, outcome, error="ValueError: no" if outcome is Outcome.FAILED else None)
            await broker.settle([report])
            attempts.add([report])
    await attempts.step()
    await broker.enqueue("acme", [NewTask(type="anything", payload="{}") for _ in range(3)])


async def test_pages_obey_their_policy_and_fit_their_window(chromium: Browser, app: FastAPI, furnished: None) -> None:
    async with looking(chromium, app) as page:
        for width, scheme in product((390, 1280), SCHEMES):
            await page.set_viewport_size({"width": width, "height": 800})
            await page.emulate_media(color_scheme=scheme)
            for path in PAGES:
                await page.goto(f".{path}")
                assert await page.title()
                assert await page.evaluate("document.documentElement.scrollWidth") <= width, path
        await page.goto("./companies/acme")
        assert await page.locator(".plot canvas").count() == 2


async def test_long_names_fit_their_window(
    chromium: Browser, app: FastAPI, database: Database, broker: PostgresBroker, acme: Company
) -> None:
    long = "long" * 16
    company = await directory.create(database, name=f"{long}{long}", slug=long)
    (task,) = await broker.enqueue(long, [NewTask(type="anything", payload="{}", queue=long[:50], tags=(long,))])
    tick = {"name": long, "type": "anything", "expression": "0 9 * * *", "payload": {}}
    async with looking(chromium, app) as page:
        assert (await page.request.post(f"/companies/{company.id}/schedules", data=tick)).ok
        for width in (390, 700, 1000):
            await page.set_viewport_size({"width": width, "height": 800})
            for path in (
                "/",
                "/companies",
                f"/companies/{long}",
                "/tasks",
                f"/companies/{long}/tasks/{task.task_id}",
                "/schedules",
            ):
                await page.goto(f".{path}")
                assert await page.evaluate("document.documentElement.scrollWidth") <= width, (path, width)
            await page.goto("./companies")
            dot = await page.locator(f"#company-{long} .dot").bounding_box()
            name = await page.locator(f"#company-{long} .company bdi").bounding_box()
            assert dot is not None
            assert name is not None
            assert dot["x"] < name["x"]
            assert name["y"] <= dot["y"] <= name["y"] + 20


async def test_axe_finds_nothing_on_any_page(
    chromium: Browser, app: FastAPI, furnished: None, broker: PostgresBroker
) -> None:
    (task,) = await broker.claim(new_id(), queues=["default"], batch=1)
    of_a_task = f"/companies/acme/tasks/{task.task_id}"
    async with looking(chromium, app, bypass_csp=True) as page:
        for path in (*PAGES, "/tasks?status=failed", of_a_task):
            await page.goto(f".{path}")
            await no_violations(page, path)


async def test_axe_finds_nothing_where_somebody_is_asked(
    chromium: Browser, guarded: FastAPI, house: House, broker: PostgresBroker
) -> None:
    await broker.enqueue("acme", [NewTask(type="anything", payload="{}") for _ in range(3)])
    async with looking(chromium, guarded, is_error=True, bypass_csp=True) as page:
        await page.goto("./sign-in")
        await no_violations(page, "sign-in")
        for key, told in (("wrong", "That key does not open anything"), (await house.operator_key(Role.ADMIN), "")):
            await page.get_by_label("An operator’s key").fill(key)
            await page.get_by_role("button", name="Sign in").click()
            await (page.get_by_text(told) if told else page.get_by_role("heading", name="Overview")).first.wait_for()
            await no_violations(page, told or "overview")
        (task,) = await broker.enqueue("acme", [NewTask(type="anything", payload="{}")])
        for path in ("/companies", "/companies/acme", f"/companies/acme/tasks/{task.task_id}"):
            await page.goto(f".{path}")
            await page.locator(".opens > summary").click()
            await page.locator(".opens form").wait_for()
            await no_violations(page, f"{path}, opened")
        for path in ("/tasks/new", "/schedules/new", "/schedules/new?company=acme"):
            await page.goto(f".{path}")
            await no_violations(page, path)
        await page.get_by_role("button", name="Create it").evaluate("button => button.form.noValidate = true")
        await page.get_by_role("button", name="Create it").click()
        await page.get_by_role("alert").wait_for()
        await no_violations(page, "a schedule that cannot be")
        for path, button in (
            ("/tasks?company=acme&status=pending", "Keys"),
            ("/settings", "Revoke"),
        ):
            await page.goto(f".{path}")
            await page.get_by_role("button", name=button).first.click()
            await page.get_by_role("dialog").wait_for()
            await no_violations(page, button)
        await page.goto("./tasks?company=acme&status=pending")
        await page.get_by_role("button", name="Cancel …").click()
        await page.get_by_text("are to be cancelled").wait_for()
        await no_violations(page, "confirm")


async def test_axe_finds_nothing_on_an_error(chromium: Browser, app: FastAPI, acme: Company) -> None:
    async with looking(chromium, app, is_error=True, bypass_csp=True) as page:
        for path in ("/nothing", "/tasks?status=none"):
            await page.goto(f".{path}")
            await no_violations(page, path)


async def no_violations(page: Page, where: str) -> None:
    for scheme in SCHEMES:
        await page.emulate_media(color_scheme=scheme)
        found = await Axe().run(page, options=WCAG)
        assert found.violations_count == 0, f"{where}, {scheme}: {found.generate_report()}"


async def test_an_operator_finds_a_failed_task_by_keys_and_runs_it_again(
    chromium: Browser, app: FastAPI, furnished: None
) -> None:
    async with looking(chromium, app) as page:
        await page.goto("./")
        await page.keyboard.press("g")
        await page.keyboard.press("t")
        await page.wait_for_url("**/tasks")
        await page.get_by_role("link", name="failed").click()
        await page.wait_for_url("**/tasks?status=failed")
        await page.keyboard.press("j")
        await page.keyboard.press("j")
        assert await page.locator("tr.at").count() == 1
        await page.keyboard.press("Enter")
        await page.get_by_role("heading", name="What failed").wait_for()
        await page.get_by_role("button", name="Retry").click()
        await page.get_by_text("Why is it waiting?").wait_for()
        await page.go_back()
        await page.go_back()
        await page.wait_for_url("**/tasks?status=failed")


async def test_the_palette_finds_companies_and_tasks_by_keys_alone(
    chromium: Browser, app: FastAPI, furnished: None, broker: PostgresBroker
) -> None:
    (task,) = await broker.claim(new_id(), queues=["default"], batch=1)
    async with looking(chromium, app, bypass_csp=True) as page:
        await page.goto("./")
        await page.keyboard.press("Control+k")
        options = page.get_by_role("option")
        await options.nth(8).wait_for()
        await no_violations(page, "palette")
        await page.keyboard.press("ArrowDown")
        assert await options.nth(1).get_attribute("aria-selected") == "true"
        assert await page.get_by_role("combobox").get_attribute("aria-activedescendant") == "found-1"
        await page.keyboard.press("Escape")
        await page.keyboard.press("Control+k")
        await page.keyboard.type(str(task.task_id))
        await page.keyboard.press("Enter")
        await page.wait_for_url(f"**/companies/acme/tasks/{task.task_id}")
        await page.get_by_role("link", name="All companies").click()
        await page.keyboard.type("glob")
        await page.keyboard.press("Enter")
        await page.wait_for_url("**/companies/globex")
        await page.keyboard.press("g")
        await page.keyboard.press("f")
        await page.wait_for_url("**/failures?company=globex")
        await page.get_by_role("button", name="All companies again").click()
        await page.wait_for_url("**/failures")


async def test_who_does_not_confirm_changes_nothing(chromium: Browser, app: FastAPI, furnished: None) -> None:
    async with looking(chromium, app) as page:
        await page.goto("./tasks?status=pending")
        await page.locator("[data-open]").first.click()
        await page.get_by_role("button", name="Cancel").click()
        await page.get_by_role("button", name="Leave it").click()
        await page.get_by_text("Why is it waiting?").wait_for()
        await page.get_by_role("button", name="Cancel").click()
        await page.get_by_role("dialog").get_by_role("button", name="Cancel").click()
        await page.get_by_text("The task is cancelled.").wait_for()


async def test_every_form_opens_and_asks_without_scripts(
    chromium: Browser, app: FastAPI, furnished: None, broker: PostgresBroker
) -> None:
    (task,) = await broker.enqueue("acme", [NewTask(type="anything", payload="{}")])
    async with looking(chromium, app, java_script_enabled=False) as page:
        await page.goto("./companies")
        assert not await page.get_by_role("button", name="Live").is_visible()
        await page.locator(".opens > summary").click()
        await page.get_by_label("Name", exact=True).fill("Initech")
        await page.get_by_role("button", name="Take it in").click()
        await page.wait_for_url("**/companies/initech")
        await page.locator(".opens > summary").click()
        await page.get_by_role("button", name="Pause", exact=True).click()
        await page.get_by_text("Initech is paused.").wait_for()
        await page.goto(f"./companies/acme/tasks/{task.task_id}")
        await page.locator(".opens > summary").click()
        await page.get_by_label("Not before").fill("2h")
        await page.get_by_role("button", name="Reschedule", exact=True).click()
        await page.get_by_text("The task waits for that time.").wait_for()
        await page.get_by_role("button", name="Cancel").click()
        await page.get_by_role("heading", name="Are you sure?").wait_for()
        await page.get_by_role("link", name="Leave it").click()
        await page.get_by_text("Why is it waiting?").wait_for()
        await page.get_by_role("button", name="Cancel").click()
        await page.get_by_role("button", name="Cancel").click()
        await page.get_by_text("The task is cancelled.").wait_for()
        await page.goto("./live")
        await page.get_by_text("The lanes are drawn by a script").wait_for()
        assert not await page.get_by_text("Connecting …").is_visible()


async def test_an_opened_form_is_closed_by_keys_and_keeps_the_page_as_it_is(
    chromium: Browser, app: FastAPI, furnished: None
) -> None:
    async with looking(chromium, app) as page:
        await page.goto("./companies")
        opener = page.locator(".opens > summary")
        await opener.focus()
        await page.keyboard.press("Enter")
        await page.get_by_label("Name", exact=True).and_(page.locator(":focus")).wait_for()
        await page.locator(".live").click(trial=True)
        await page.keyboard.press("Escape")
        await page.locator(".opens:not([open])").wait_for()
        assert await opener.evaluate("opener => opener === document.activeElement")


async def test_a_button_that_is_pressed_twice_does_it_once(chromium: Browser, app: FastAPI, furnished: None) -> None:
    async with looking(chromium, app) as page:
        await page.goto("./settings")
        await page.get_by_text("Make a key of an operator").click()
        await page.get_by_label("Name").fill("ada")
        await page.get_by_role("button", name="Make it").evaluate(
            "button => { button.click(); setTimeout(() => button.click()); }"
        )
        await page.get_by_text("It is shown this once").wait_for()
        await page.goto("./settings")
        assert await page.locator("[data-rows] tbody tr").count() == 1


async def test_the_cursor_is_at_the_same_time_on_every_chart(chromium: Browser, app: FastAPI, furnished: None) -> None:
    async with looking(chromium, app) as page:
        await page.goto("./companies/acme")
        first = page.locator(".u-over").first
        await first.hover()
        tips = page.locator(".u-over .tip")
        await tips.nth(1).wait_for()
        whens = [await tips.nth(number).locator("p").first.inner_text() for number in range(2)]
        assert whens[0] == whens[1]
        await page.mouse.move(5, 5)
        await tips.first.wait_for(state="detached")
        assert await tips.count() == 0


async def test_a_list_stays_up_to_date_but_not_under_a_selection(
    chromium: Browser, app: FastAPI, furnished: None, broker: PostgresBroker
) -> None:
    async with looking(chromium, app) as page:
        await page.clock.install()
        await page.goto("./tasks?company=acme")
        rows = page.locator("[data-rows] tbody tr")
        assert await rows.count() == 9
        await broker.enqueue("acme", [NewTask(type="anything", payload="{}")])
        await page.clock.run_for(EVERY)
        await rows.nth(9).wait_for()
        await page.locator("input[name=task]").first.check()
        await broker.enqueue("acme", [NewTask(type="anything", payload="{}")])
        await page.clock.run_for(EVERY)
        await page.locator(".live.held").wait_for()
        assert await rows.count() == 10
        await page.locator("input[name=task]").first.uncheck()
        await page.mouse.move(5, 5)
        await page.clock.run_for(EVERY)
        await rows.nth(10).wait_for()


async def test_live_follows_a_flood(chromium: Browser, app: FastAPI, furnished: None, broker: PostgresBroker) -> None:
    worker_id, line = new_id(), broker.lease_line(patience_seconds=PATIENCE)
    line.take(worker_id, Holder(queues=("default",), types=(), concurrency=8, name="one"), former=None)
    async with looking(chromium, app, viewport={"width": 1000, "height": 800}) as page:
        await page.clock.install()
        await page.goto("./live")
        await page.get_by_text("one · 8 hands").or_(page.locator("[data-live-state]", has_text="Live")).first.wait_for()
        height, running = None, list[ClaimedTask]()
        for _ in range(3):
            for company in ("acme", "globex"):
                await broker.enqueue(company, [NewTask(type="anything", payload="{}") for _ in range(100)])
            await broker.settle([Report(task, Outcome.COMPLETED) for task in running])
            running = await broker.claim(worker_id, queues=["default"], batch=8)
            await page.clock.run_for(EVERY)
            await page.locator(f"#now-{running[-1].task_id}").wait_for()
            assert await page.locator("#now tbody tr").count() == 8
            assert await page.evaluate("document.documentElement.scrollWidth") <= 1000
            drawn = await page.locator(".lanes canvas").evaluate("canvas => canvas.clientHeight")
            assert height in {None, drawn}
            height = drawn
        for company in ("acme", "globex"):
            await page.locator("[data-live-legend] li", has_text=company).wait_for()
        assert await page.locator("[data-live-state]").inner_text() == "Live"
    line.close()


async def test_the_look_is_kept_and_single_keys_can_be_switched_off(
    chromium: Browser, app: FastAPI, furnished: None
) -> None:
    async with looking(chromium, app, color_scheme="light") as page:
        await page.goto("./tasks")
        await page.get_by_role("button", name="Dark").click()
        await page.reload()
        assert await page.locator("html").get_attribute("data-theme") == "dark"
        await page.keyboard.press("?")
        await page.get_by_label("Single keys do something").uncheck()
        await page.keyboard.press("Escape")
        await page.keyboard.press("t")
        assert await page.locator("html").get_attribute("data-theme") == "dark"


async def test_turns_are_drawn_as_they_are_taken(
    chromium: Browser, app: FastAPI, furnished: None, broker: PostgresBroker
) -> None:
    async with looking(chromium, app) as page:
        await page.goto("./live")
        await page.get_by_text("Live", exact=True).first.wait_for()
        await broker.claim(new_id(), queues=["default"], batch=2)
        await page.locator("[data-live-legend] li", has_text="acme").wait_for()
        await page.locator("#now tbody tr").nth(1).wait_for()


async def test_nothing_of_a_task_runs_in_the_browser(
    chromium: Browser, app: FastAPI, acme: Company, broker: PostgresBroker
) -> None:
    evil = '{"value": "<img src=x onerror=document.title=1>\\"\'</script><script>document.title=2</script>"}'
    (made,) = await broker.enqueue("acme", [NewTask(type="anything", payload=evil)])
    async with looking(chromium, app) as page:
        await page.goto(f"./companies/acme/tasks/{made.task_id}")
        assert "onerror" in await page.locator("pre.json").inner_text()
        assert (await page.title()).startswith("Task ")
