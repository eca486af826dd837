"""Who is let in, what they may do, and that no form but ours does anything."""

from __future__ import annotations

import asyncio
import re
from collections import Counter
from typing import Final

import psycopg
import pytest
from fastapi import FastAPI
from httpx2 import ASGITransport, AsyncClient

from taketurns.brokers.postgres import PostgresBroker
from taketurns.companies import keys
from taketurns.companies.wrong_keys import WrongKeys
from taketurns.dashboard import application, visits
from taketurns.engine import key
from taketurns.engine.key import Role
from taketurns.engine.rate import Rate
from taketurns.engine.registry import Registry
from taketurns.storage.database import Database, conninfo
from taketurns.storage.ids import new_id
from tests.api import keyed
from tests.api.keyed import House
from tests.dashboard.browsing import Browser, Page
from tests.dashboard.conftest import with_dashboard

POSTS: Final = [(path, endpoint) for method, path, endpoint in application.PAGES if method == "POST"]
CHANGES: Final = [
    (path, endpoint) for path, endpoint in POSTS if visits.need_of(endpoint) not in {"anybody", Role.VIEWER}
]
READS: Final = [path for method, path, endpoint in application.PAGES if method == "GET"]
OPEN: Final = {"/sign-in", "/sign-out", "/theme"}


def filled(path: str, house: House) -> str:
    names = {"company": "acme", "task": house.names["taskId"], "schedule": house.names["scheduleId"]}
    names |= {"key": house.names["keyId"], "operation": house.names["operationId"], "worker": "mail"}
    return path.format_map(names)


async def test_a_stranger_is_led_to_the_form_and_back_to_where_they_were_going(stranger: Browser, house: House) -> None:
    answer = await stranger.get("/tasks?company=acme")
    assert answer.status_code == 303
    form = Page((await stranger.client.get(answer.headers["location"])).text).form("/sign-in")
    landed = await stranger.submit(form, key=await house.operator_key(Role.VIEWER))
    assert (landed.status_code, landed.url.raw_path) == (200, b"/dashboard/tasks?company=acme")
    assert "viewer" in Page(landed.text).text


@pytest.mark.parametrize("path", READS)
async def test_nothing_is_shown_to_a_stranger(stranger: Browser, house: House, path: str) -> None:
    answer = await stranger.get(filled(path, house))
    if path == "/sign-in":
        assert answer.status_code == 200
    else:
        assert (answer.status_code, answer.content) == (303, b"")
        assert answer.headers["location"].startswith("/dashboard/sign-in")


@pytest.mark.parametrize(("path", "endpoint"), CHANGES, ids=[path for path, _ in CHANGES])
async def test_who_has_a_lesser_role_changes_nothing(
    stranger: Browser, house: House, path: str, endpoint: application.Page
) -> None:
    need = visits.need_of(endpoint)  # type: ignore[arg-type]
    lesser = Role.VIEWER if need is Role.OPERATOR else Role.OPERATOR
    await stranger.sign_in(await house.operator_key(lesser))
    answer = await stranger.post(filled(path, house), {"token": await stranger.token()})
    assert answer.status_code == 403
    assert f"It takes the role {need}" in Page(answer.text).text


@pytest.mark.parametrize(("role", "lacks"), [(Role.VIEWER, {Role.OPERATOR, Role.ADMIN}), (Role.OPERATOR, {Role.ADMIN})])
async def test_nobody_sees_a_form_that_they_may_not_send(
    stranger: Browser, house: House, role: Role, lacks: set[Role]
) -> None:
    await stranger.sign_in(await house.operator_key(role))
    forbidden = [
        re.compile(re.sub(r"\{\w+\}", "[^/]+", f"/dashboard{path}"))
        for path, endpoint in CHANGES
        if visits.need_of(endpoint) in lacks
    ]
    seen = 0
    for path in READS:
        answer = await stranger.get(filled(path, house)) if path not in {"/live/stream", "/sign-in"} else None
        if answer is not None and answer.status_code == 200:
            forms = [form for form in Page(answer.text).forms if form.method == "post"]
            assert not [form.action for form in forms if any(one.fullmatch(form.action) for one in forbidden)], path
            seen += 1
    assert seen > 10


@pytest.mark.parametrize("path", [path for path, _ in POSTS])
@pytest.mark.parametrize("token", [None, "", "0" * 64])
async def test_a_form_without_the_token_of_its_browser_does_nothing(
    stranger: Browser, house: House, path: str, token: str | None
) -> None:
    await stranger.sign_in(await house.operator_key(Role.ADMIN))
    answer = await stranger.post(filled(path, house), {} if token is None else {"token": token})
    assert answer.status_code == 403
    assert "Nothing was done" in Page(answer.text).text


async def test_a_token_is_of_one_browser_alone(stranger: Browser, guarded: FastAPI, house: House) -> None:
    admin = await house.operator_key(Role.ADMIN)
    await stranger.sign_in(admin)
    async with AsyncClient(transport=ASGITransport(guarded), base_url="http://localhost") as client:
        other = Browser(client)
        await other.sign_in(admin)
        answer = await other.post("/companies/acme/pause", {"token": await stranger.token()})
    assert answer.status_code == 403


@pytest.mark.parametrize("site", ["cross-site", "same-site"])
async def test_a_form_on_another_site_does_nothing(browser: Browser, site: str) -> None:
    token = await browser.token()
    browser.client.headers["sec-fetch-site"] = site
    assert (await browser.post("/companies", {"token": token, "name": "Evil"})).status_code == 403


async def test_where_nobody_is_asked_forms_are_held_to_their_browser_as_well(browser: Browser) -> None:
    assert (await browser.post("/companies", {"name": "Evil"})).status_code == 403
    assert (await browser.post("/companies", {"name": "Good", "token": await browser.token()})).status_code == 303


async def test_a_body_that_is_no_form_is_refused(browser: Browser) -> None:
    token = await browser.token()
    answer = await browser.client.post("/dashboard/companies", json={"name": "Evil", "token": token})
    assert answer.status_code == 415
    large = await browser.post("/companies", {"token": token, "name": "x" * 2_000_000})
    assert large.status_code == 413
    broken = await browser.client.post(
        "/dashboard/companies", content=b"token=%ff", headers={"content-type": "application/x-www-form-urlencoded"}
    )
    assert broken.status_code == 400


async def test_the_cookie_is_kept_from_scripts_and_other_sites(stranger: Browser, house: House) -> None:
    form = (await stranger.page("/sign-in")).form("/sign-in")
    before = stranger.client.cookies[visits.COOKIE]
    answer = await stranger.post(form.action, form.fields | {"key": await house.operator_key(Role.VIEWER)})
    told = answer.headers["set-cookie"].lower()
    assert "httponly" in told
    assert "samesite=lax" in told
    assert "path=/dashboard" in told
    assert "secure" not in told
    assert stranger.client.cookies[visits.COOKIE] != before


async def test_over_https_the_cookie_is_secure(guarded: FastAPI) -> None:
    async with AsyncClient(transport=ASGITransport(guarded), base_url="https://localhost") as client:
        assert "secure" in (await client.get("/dashboard/sign-in")).headers["set-cookie"].lower()


async def test_a_session_ends_with_its_key(stranger: Browser, house: House, guarded: FastAPI) -> None:
    text = await house.operator_key(Role.ADMIN)
    await stranger.sign_in(text)
    assert (await stranger.get("/")).status_code == 200
    found = key.read(text.encode())
    assert found is not None
    await keys.revoke(house.database, None, found.id)
    guarded.state.parts.guard.keyring.forget(found.id)
    answer = await stranger.get("/")
    assert answer.status_code == 303
    assert "revoked" in (await stranger.page(answer.headers["location"])).text


async def test_a_session_is_over_after_its_time(stranger: Browser, house: House, database_url: str) -> None:
    await stranger.sign_in(await house.operator_key(Role.ADMIN))
    with psycopg.connect(conninfo(database_url)) as connection:
        connection.execute("update taketurns.sessions set expires_at = clock_timestamp()")
    assert (await stranger.get("/")).status_code == 303
    await stranger.sign_in(await house.operator_key(Role.ADMIN))
    with psycopg.connect(conninfo(database_url)) as connection:
        assert connection.execute("select count(*) from taketurns.sessions").fetchone() == (1,)


async def test_who_signs_out_is_out(stranger: Browser, house: House) -> None:
    await stranger.sign_in(await house.operator_key(Role.ADMIN))
    cookie = stranger.client.cookies[visits.COOKIE]
    answer = await stranger.submit((await stranger.page("/")).form("/sign-out"))
    assert "You are signed out." in Page(answer.text).text
    stranger.client.cookies.clear()
    stranger.client.cookies.set(visits.COOKIE, cookie)
    assert (await stranger.get("/")).status_code == 303


async def test_the_token_is_not_in_the_database(stranger: Browser, house: House, database_url: str) -> None:
    await stranger.sign_in(await house.operator_key(Role.ADMIN))
    with psycopg.connect(conninfo(database_url)) as connection:
        (row,) = connection.execute("select s::text from taketurns.sessions s").fetchall()
    assert stranger.client.cookies[visits.COOKIE] not in row[0]
    assert stranger.client.cookies[visits.COOKIE].encode().hex() not in row[0]


async def test_a_company_s_key_opens_nothing(stranger: Browser, house: House) -> None:
    answer = await stranger.sign_in(await house.company_key(house.acme))
    assert answer.status_code == 401
    assert "company’s" in answer.text or "company&#39;s key" in answer.text
    assert (await stranger.get("/")).status_code == 303


@pytest.mark.parametrize("text", ["", "tt_live_x", "\N{SNOWMAN}", "x" * 10_000])
async def test_what_is_no_key_opens_nothing(stranger: Browser, house: House, text: str) -> None:
    answer = await stranger.sign_in(text)
    assert answer.status_code == 401
    assert "That key does not open anything" in Page(answer.text).text


async def test_the_form_is_held_to_the_limit_on_wrong_keys_together_with_the_api(
    database: Database, broker: PostgresBroker, registry: Registry
) -> None:
    app = with_dashboard(
        database, broker, registry, asks_for_keys=True, wrong_keys=WrongKeys(Rate(4, seconds=86_400, burst=4))
    )
    house = await keyed.house(app, database)
    known, late = [await house.operator_key(Role.VIEWER) for _ in range(2)]
    async with house.client, AsyncClient(transport=ASGITransport(app), base_url="http://localhost") as client:
        browser = Browser(client)
        assert (await browser.sign_in(known)).status_code == 200
        assert (await client.get("/companies", headers=keyed.bearer("tt_wrong"))).status_code == 401
        form = (await browser.page("/sign-in")).form("/sign-in")
        answers = await asyncio.gather(
            *(browser.post(form.action, form.fields | {"key": key.make("test", new_id()).text}) for _ in range(12))
        )
        assert Counter(answer.status_code for answer in answers) == {401: 3, 429: 9}
        refused = await browser.post(form.action, form.fields | {"key": late})
        assert refused.status_code == 429
        assert 20_000 < int(refused.headers["retry-after"]) <= 21_600
        assert "Too many keys did not work" in Page(refused.text).text
        assert (await client.get("/companies", headers=keyed.bearer(late))).status_code == 429
        assert (await browser.submit(form, key=known)).status_code == 200
    await app.state.parts.waiting.close()
    await app.state.parts.guard.keyring.close()


@pytest.mark.parametrize(
    "wanted", ["https://evil.example/", "//evil.example/", "/dashboard/\\evil", "javascript:alert(1)"]
)
async def test_signing_in_leads_nowhere_else(stranger: Browser, house: House, wanted: str) -> None:
    form = (await stranger.page("/sign-in")).form("/sign-in")
    fields = form.fields | {"key": await house.operator_key(Role.VIEWER), "back": wanted}
    assert (await stranger.post(form.action, fields)).headers["location"] == "/dashboard/"


async def test_on_loopback_only_other_names_and_addresses_are_refused(
    database: Database, broker: PostgresBroker, registry: Registry
) -> None:
    app = with_dashboard(database, broker, registry, on_loopback_only=True)
    for base_url, status in (
        ("http://127.0.0.1", 200),
        ("http://localhost", 200),
        ("http://evil.example", 403),
        ("http://10.0.0.1", 403),
    ):
        async with AsyncClient(transport=ASGITransport(app), base_url=base_url) as client:
            assert (await client.get("/dashboard/")).status_code == status, base_url
    async with AsyncClient(transport=ASGITransport(app), base_url="http://127.0.0.1") as client:
        assert (await client.get("/dashboard/", headers={"host": "evil.example"})).status_code == 403
    await app.state.parts.waiting.close()


async def test_what_is_changed_is_in_the_audit_under_the_visitor_s_key(stranger: Browser, house: House) -> None:
    await stranger.sign_in(await house.operator_key(Role.OPERATOR))
    await stranger.post("/companies/acme/pause", {"token": await stranger.token()})
    page = await stranger.page("/operations?action=changeCompany")
    (row,) = [tag for tag in page.all("tr") if "changeCompany" in tag.text]
    assert "operator" in row.text
    assert "testclient" in row.text or "127.0.0.1" in row.text
