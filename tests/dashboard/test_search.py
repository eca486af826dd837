"""Finding pages, companies and tasks, and looking at one company alone."""

from __future__ import annotations

from taketurns.brokers.postgres import PostgresBroker
from taketurns.companies import directory
from taketurns.companies.directory import Company
from taketurns.engine.task import NewTask
from taketurns.storage.database import Database
from taketurns.storage.ids import new_id
from tests.dashboard.browsing import Browser, Page


def found(page: Page) -> list[str]:
    """Where the links of the list lead."""
    (results,) = [number for number, tag in enumerate(page.tags) if "data-found" in tag.attributes]
    addresses = []
    for tag in page.tags[results + 1 :]:
        if tag.name not in {"li", "a", "i", "bdi", "span", "svg", "use"}:
            break
        if tag.name == "a":
            addresses.append(tag.attributes["href"].removeprefix("/dashboard"))
    return addresses


async def test_pages_and_companies_are_found_by_a_part_of_their_name(
    browser: Browser, database: Database, acme: Company
) -> None:
    await directory.create(database, name="The Task Force", slug="zeta-1")
    assert len(found(await browser.page("/search"))) == 9
    assert found(await browser.page("/search?q=TASK")) == ["/tasks", "/companies/zeta-1"]
    assert found(await browser.page("/search?q=cm")) == ["/companies/acme"]
    for nothing in ("%25", "_", "\\", "nobody"):
        assert "Nothing is called so" in (await browser.page(f"/search?q={nothing}")).text


async def test_companies_that_begin_with_what_was_typed_come_first(browser: Browser, database: Database) -> None:
    for slug in ("a-mail", "mail", "z-mail"):
        await directory.create(database, name=f"Company {slug}", slug=slug)
    assert found(await browser.page("/search?q=mail")) == [
        f"/companies/{slug}" for slug in ("mail", "a-mail", "z-mail")
    ]


async def test_a_task_is_found_by_its_id_whosever_it_is(
    browser: Browser, broker: PostgresBroker, database: Database, acme: Company
) -> None:
    await directory.create(database, name="Globex", slug="globex")
    (made,) = await broker.enqueue("globex", [NewTask(type="anything", payload="{}")])
    task = f"/companies/globex/tasks/{made.task_id}"
    assert found(await browser.page(f"/search?q=%20{str(made.task_id).upper()}%20")) == [task]
    assert "Nothing is called so" in (await browser.page(f"/search?q={new_id()}")).text


async def test_a_company_that_is_chosen_is_remembered_until_it_is_let_go(
    browser: Browser, database: Database, acme: Company
) -> None:
    await directory.create(database, name="Globex", slug="globex")
    page = await browser.page("/search?for=company&q=")
    form = next(form for form in page.forms if form.action.endswith("/company"))
    chosen = await browser.submit(form, company="acme")
    assert str(chosen.url).endswith("/dashboard/companies/acme")
    menu = {link.text: link.attributes["href"] for link in Page(chosen.text).all("a") if "data-key" in link.attributes}
    assert menu["Tasks"] == "/dashboard/tasks?company=acme"
    assert menu["Workers"] == "/dashboard/workers"
    of_acme = await browser.page("/tasks?company=acme&status=failed&after=x", 400)
    assert "acme" in of_acme.text
    cleared = await browser.submit(
        of_acme.form("/company"), company="", back="/dashboard/tasks?company=acme&status=failed"
    )
    assert str(cleared.url).endswith("/dashboard/tasks?status=failed")
    assert "All companies" in Page(cleared.text).text


async def test_the_choice_stays_on_the_page_that_it_is_made_on(browser: Browser, acme: Company) -> None:
    token = await browser.token()
    for back, led in (
        ("/dashboard/failures?company=globex&after=1", "/dashboard/failures?company=acme"),
        ("/dashboard/tasks?status=failed", "/dashboard/tasks?status=failed&company=acme"),
        ("/dashboard/live", "/dashboard/companies/acme"),
        ("https://elsewhere.example/", "/dashboard/companies/acme"),
    ):
        answer = await browser.post("/company", {"token": token, "company": "acme", "back": back})
        assert answer.headers["location"] == led
    for back, led in (
        ("/dashboard/live", "/dashboard/live"),
        ("/dashboard/companies/acme", "/dashboard/companies"),
        ("", "/dashboard/"),
    ):
        answer = await browser.post("/company", {"token": token, "company": "", "back": back})
        assert answer.headers["location"] == led
    assert (await browser.post("/company", {"token": token, "company": "nobody"})).status_code == 404
    browser.client.cookies.set("taketurns_company", "<b>")
    assert "All companies" in (await browser.page("/")).text
