"""Every page: nothing in it runs but our files, whatever tasks bring, and every link in it leads somewhere."""

from __future__ import annotations

import json
import re
from typing import Final
from urllib.parse import urljoin, urlsplit

import psycopg
import pytest
from fastapi import FastAPI
from httpx2 import ASGITransport, AsyncClient
from psycopg.types.json import Jsonb

from taketurns.brokers.postgres import PostgresBroker
from taketurns.companies import directory
from taketurns.dashboard import application
from taketurns.engine.key import Role
from taketurns.engine.registry import Registry
from taketurns.engine.task import NewTask, Outcome, Report
from taketurns.storage.database import Database, conninfo
from taketurns.storage.ids import new_id
from tests.api.keyed import House
from tests.dashboard.browsing import Browser, Page
from tests.dashboard.conftest import with_dashboard

READS: Final = [path for method, path, _ in application.PAGES if method == "GET" and path != "/live/stream"]
EVIL: Final = "<img src=x onerror=alert(1)>\"'</script><script>alert(2)</script>{{ 7*7 }}\u202e"
POLICY: Final = "default-src 'none'; script-src 'self'; style-src 'self';"


def filled(path: str, names: dict[str, str]) -> str:
    short = {name.removesuffix("Id"): value for name, value in names.items()}
    return path.format_map(short)


def faults(page: Page) -> list[str]:
    """What a page must not have."""
    found = []
    for tag in page.tags:
        found += [
            f"{tag.name} {name}" for name in tag.attributes if name.startswith("on") or name in {"style", "srcdoc"}
        ]
        found += [
            f"{tag.name} {name}={value}"
            for name, value in tag.attributes.items()
            if name in {"href", "src", "action"} and value.strip().lower().startswith(("javascript:", "data:", "http"))
        ]
    found += [f"script {tag.text!r}" for tag in page.all("script") if tag.text.strip() or "src" not in tag.attributes]
    found += ["style" for _ in page.all("style")]
    ids = [tag.attributes["id"] for tag in page.tags if "id" in tag.attributes]
    found += [f"id {id} twice" for id in set(ids) if ids.count(id) > 1]
    found += [f"img {tag.attributes}" for tag in page.all("img")]
    return found


@pytest.fixture
async def admin(stranger: Browser, house: House) -> Browser:
    await stranger.sign_in(await house.operator_key(Role.ADMIN))
    return stranger


@pytest.mark.parametrize("path", READS)
async def test_a_page_has_no_script_and_no_style_in_it_and_every_link_leads_somewhere(
    admin: Browser, house: House, path: str
) -> None:
    answer = await admin.get(filled(path, house.names | {"companyId": "acme"}))
    if path == "/sign-in":
        answer = await admin.client.get("/dashboard/sign-in")
    assert answer.status_code == 200, answer.text
    page = Page(answer.text)
    assert faults(page) == []
    assert answer.headers["content-security-policy"].startswith(POLICY)
    assert "unsafe" not in answer.headers["content-security-policy"]
    assert answer.headers["cache-control"] == "no-store"
    for link in {urljoin(str(answer.url), link) for link in page.links if not link.startswith("#")}:
        led = await admin.client.get(link)
        assert led.status_code in {200, 307}, link
        fragment = urlsplit(link).fragment
        assert not fragment or f'id="{fragment}"' in led.text, link
    for form in page.forms:
        assert form.action.startswith("/dashboard/") or form.method == "dialog"
        assert form.method != "post" or "token" in form.fields


@pytest.mark.parametrize(
    "path", ["/nothing", "/tasks?status=x", "/tasks?after=1", "/companies/nobody", "/static/1/none.js"]
)
async def test_every_answer_has_the_policy(admin: Browser, path: str) -> None:
    answer = await admin.get(path)
    assert answer.status_code in {400, 404}
    assert answer.headers["content-security-policy"].startswith(POLICY)
    assert answer.headers["x-content-type-options"] == "nosniff"
    if "html" in answer.headers.get("content-type", ""):
        assert faults(Page(answer.text)) == []


@pytest.mark.parametrize(("prefix", "root_path"), [("/console", ""), ("/dashboard", "/jobs"), ("/a/b", "/c")])
async def test_links_stay_under_a_prefix(
    database: Database, broker: PostgresBroker, registry: Registry, prefix: str, root_path: str
) -> None:
    app = with_dashboard(database, broker, registry, prefix=prefix)
    await directory.create(database, name="Acme", slug="acme")
    await broker.enqueue("acme", [NewTask(type="anything", payload="{}")])
    transport = ASGITransport(app, root_path=root_path)
    async with AsyncClient(transport=transport, base_url="http://localhost") as client:
        led = await client.get(f"{root_path}/")
        assert led.headers["location"] == f"{root_path}{prefix}/"
        browser = Browser(client, f"{root_path}{prefix}")
        for path in ("/", "/tasks", "/companies", "/companies/acme", "/live", "/settings", "/nothing"):
            page = Page((await browser.get(path)).text)
            for link in page.links:
                assert link.startswith(("#", "?", f"{root_path}{prefix}/", f"{root_path}/")), link
            for form in page.forms:
                assert form.action.startswith(f"{root_path}{prefix}/") or form.method == "dialog"
        assert "path=" + f"{root_path}{prefix}" in (await client.get(f"{root_path}{prefix}/")).headers.get(
            "set-cookie", f"path={root_path}{prefix}"
        )
    await app.state.parts.waiting.close()


async def test_the_api_keeps_its_paths(browser: Browser, app: FastAPI) -> None:
    assert (await browser.client.get("/nothing")).headers["content-type"] == "application/problem+json"
    assert (await browser.client.get("/companies")).json()["companies"] == []
    assert (await browser.client.get("/dashboard", follow_redirects=True)).status_code == 200


async def test_what_is_hostile_is_shown_as_text_on_every_page(
    admin: Browser, house: House, database: Database, broker: PostgresBroker, database_url: str
) -> None:
    evil = EVIL
    company = await directory.create(database, name=evil, slug="evil")
    for outcome in (Outcome.FAILED, Outcome.COMPLETED):
        await broker.enqueue(
            "evil",
            [NewTask(type="anything", payload=json.dumps({evil: evil}), tags=(evil[:64],))],
            request_id="r",
        )
        worker = new_id()
        (task,) = [
            one for one in await broker.claim(worker, queues=["default"], batch=100) if one.company_id == company.id
        ]
        result = json.dumps([evil]) if outcome is Outcome.COMPLETED else None
        await broker.settle([Report(task, outcome, result=result, error=evil)])
    await broker.enqueue("evil", [NewTask(type="anything", payload="{}")])
    with psycopg.connect(conninfo(database_url)) as connection:
        connection.execute("update taketurns.tasks set type = %s, unique_key = %s, queue = %s", [evil] * 3)
        connection.execute("update taketurns.tasks set error_fingerprint = %s where error is not null", [evil[:20]])
        connection.execute("update taketurns.schedules set name = %s, error = %s", [evil, evil])
        connection.execute("update taketurns.api_keys set name = name || %s", [evil])
        connection.execute(
            "insert into taketurns.heartbeats (name, id, kind, comes_again, host, version, queues, types, concurrency,"
            " started_at, beat_at) values (%s, %s, 'worker', true, %s, %s, %s, 1, 1, now(), now())",
            [evil, new_id(), evil, evil, [evil]],
        )
        connection.execute("update taketurns.operations set filter = %s", [Jsonb({evil: [evil]})])
        ids = connection.execute("select id from taketurns.tasks where company_id = %s", [company.id]).fetchall()
    house.names |= {"companyId": "acme"}
    paths = [filled(path, house.names) for path in READS if path != "/sign-in"]
    paths += ["/companies/evil", "/tasks?company=evil", "/failures?company=evil", "/settings?company=evil"]
    paths += [f"/companies/evil/tasks/{id}" for (id,) in ids]
    paths += [f"/tasks?type={EVIL}", f"/companies?q={EVIL}", f"/sign-in?next={EVIL}"]
    seen = 0
    for path in paths:
        answer = await admin.get(path)
        page = Page(answer.text)
        assert faults(page) == [], path
        assert "49" not in re.findall(r"script>(\d+)", page.text)
        seen += "<img src=x onerror=alert(1)>" in page.text
    assert seen > 10


async def test_big_numbers_keep_their_digits(browser: Browser, broker: PostgresBroker, database: Database) -> None:
    await directory.create(database, name="Acme", slug="acme")
    payload = '{"id": 9007199254740993, "n": 18446744073709551615, "f": 0.1, "e": 1e21}'
    (made,) = await broker.enqueue("acme", [NewTask(type="anything", payload=f'{{"value": {payload}}}')])
    page = await browser.page(f"/companies/acme/tasks/{made.task_id}")
    for digits in ("9007199254740993", "18446744073709551615", "0.1", "1e21"):
        assert digits in page.text
    (area,) = page.all("textarea")
    answer = await browser.submit(page.form("/edited"), payload=area.text)
    again = Page(answer.text)
    assert "18446744073709551615" in again.text
    assert str(made.task_id) not in str(answer.url)


async def test_files_are_kept_for_ever_under_their_edition(browser: Browser) -> None:
    page = await browser.page("/")
    links = [link for link in page.links if "/static/" in link]
    assert any(link.endswith("dashboard.css") for link in links)
    for link in links:
        answer = await browser.client.get(link)
        assert answer.headers["cache-control"] == "public, max-age=31536000, immutable"
    old = links[0].replace(links[0].split("/")[3], "000000000000")
    assert (await browser.client.get(old)).headers["cache-control"] == "no-store"
    assert (await browser.client.get("/dashboard/static/x/../application.py")).status_code == 404


async def test_scripts_of_others_are_as_they_were_published(browser: Browser) -> None:
    for name in ("vendor/htmx.LICENSE.txt", "vendor/uPlot.LICENSE.txt"):
        (link,) = {link for link in (await browser.page("/settings")).links if link.endswith(name)}
        assert "Permission" in (await browser.client.get(link)).text


async def test_a_fault_of_ours_is_told_in_a_page_too(browser: Browser, database_url: str) -> None:
    with psycopg.connect(conninfo(database_url)) as connection:
        connection.execute("alter table taketurns.companies rename column name to other")
    answer = await browser.get("/companies")
    page = Page(answer.text)
    assert answer.status_code == 500
    assert answer.headers["x-request-id"] in page.text
    assert answer.headers["content-security-policy"].startswith(POLICY)
    assert faults(page) == []


async def test_while_the_database_is_away_a_page_says_so_and_looks_again(
    broker: PostgresBroker, registry: Registry
) -> None:
    away = Database("postgresql://nobody@127.0.0.1:1/none", pool_size=2, pool_timeout=0.2)
    await away.open()
    app = with_dashboard(away, broker, registry)
    async with AsyncClient(transport=ASGITransport(app), base_url="http://localhost") as client:
        for path in ("/", "/tasks", "/companies", "/companies/acme", "/live", "/workers", "/failures", "/settings"):
            answer = await client.get(f"/dashboard{path}")
            assert answer.status_code == 503
            page = Page(answer.text)
            assert "The database is away" in page.text
            assert page.all("meta", **{"http-equiv": "refresh"})
            assert faults(page) == []
    await app.state.parts.waiting.close()
    await away.close()
