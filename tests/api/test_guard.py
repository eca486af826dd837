"""Who may call what: a walk over every route of the document, and what is told to those who may not."""

from __future__ import annotations

import json
import re
from collections.abc import AsyncIterator
from datetime import timedelta
from typing import Any, Final
from uuid import UUID

import psycopg
import pytest
from fastapi import FastAPI
from httpx2 import ASGITransport, AsyncClient, Response

from taketurns.api import documentation
from taketurns.api.application import create_api
from taketurns.api.guard import Guard, GuardedRoute, need_of
from taketurns.brokers.postgres import PostgresBroker
from taketurns.brokers.redis import RedisBroker
from taketurns.brokers.redis.server import Server
from taketurns.companies import keys
from taketurns.companies.keyring import KeyRing
from taketurns.engine.job import JobBroker
from taketurns.engine.key import GRANTS, Role, Scope, id_of, make
from taketurns.engine.registry import Registry
from taketurns.history import tasks
from taketurns.storage.database import Database
from taketurns.storage.ids import new_id
from tests.api import keyed
from tests.api.conftest import process_nothing
from tests.api.keyed import STAMP, House, bearer
from tests.api.test_documentation import SNAPSHOT

OPEN: Final = (None, None)

# What each operation needs: a company's key with this scope ("any": whichever, None: no such key), an operator's role.
NEEDS: Final[dict[str, tuple[str | None, str | None]]] = {
    "getHealth": OPEN,
    "getReady": OPEN,
    "getLimits": OPEN,
    "listTaskTypes": ("any", "viewer"),
    "createTask": ("tasks:write", "operator"),
    "createBatch": ("tasks:write", "operator"),
    "listTasks": ("tasks:read", "viewer"),
    "getTask": ("tasks:read", "viewer"),
    "listTaskEvents": ("tasks:read", "viewer"),
    "cancelTask": ("tasks:write", "operator"),
    "retryTask": ("tasks:write", "operator"),
    "rescheduleTask": ("tasks:write", "operator"),
    "deleteTask": ("tasks:write", "operator"),
    "createOperation": ("tasks:write", "operator"),
    "listOperations": ("tasks:read", "viewer"),
    "getOperation": ("tasks:read", "viewer"),
    "abortOperation": ("tasks:write", "operator"),
    "listFailures": ("tasks:read", "viewer"),
    "createJob": ("jobs:write", "operator"),
    "getJob": ("jobs:read", "viewer"),
    "watchJob": ("jobs:read", "viewer"),
    "cancelJob": ("jobs:write", "operator"),
    "retryJob": ("jobs:write", "operator"),
    "createSchedule": ("schedules:write", "operator"),
    "listSchedules": ("schedules:read", "viewer"),
    "getSchedule": ("schedules:read", "viewer"),
    "changeSchedule": ("schedules:write", "operator"),
    "deleteSchedule": ("schedules:write", "operator"),
    "getCompany": ("any", "viewer"),
    "getUsage": ("usage:read", "viewer"),
    "getStats": ("usage:read", "viewer"),
    "createCompany": (None, "operator"),
    "listCompanies": (None, "viewer"),
    "changeCompany": (None, "operator"),
    "deleteCompany": (None, "admin"),
    "exportCompany": (None, "admin"),
    "listPausesOfCompany": ("any", "viewer"),
    "putPauseOfCompany": (None, "operator"),
    "liftPauseOfCompany": (None, "operator"),
    "listPauses": (None, "viewer"),
    "putPause": (None, "operator"),
    "liftPause": (None, "operator"),
    "createKey": (None, "admin"),
    "listKeys": (None, "viewer"),
    "getKey": (None, "viewer"),
    "rotateKey": (None, "admin"),
    "revokeKey": (None, "admin"),
    "createOperatorKey": (None, "admin"),
    "listOperatorKeys": (None, "viewer"),
    "getOperatorKey": (None, "viewer"),
    "rotateOperatorKey": (None, "admin"),
    "revokeOperatorKey": (None, "admin"),
    "listAuditEntries": (None, "viewer"),
    "listWorkers": (None, "viewer"),
    "drainWorker": (None, "operator"),
    "resumeWorker": (None, "operator"),
    "stopWorker": (None, "operator"),
    "processTasks": (None, "operator"),
    "getMetrics": (None, "viewer"),
}
OF_ONE_S_OWN: Final = re.compile(r"([a-z]+)Own([A-Z].*)")

OPERATIONS: Final = [
    (operation["operationId"], method.upper(), path)
    for path, operations in json.loads(SNAPSHOT.read_text("utf-8"))["paths"].items()
    for method, operation in operations.items()
]
TOKEN: Final = "a-token-for-the-metrics"
SCOPES: Final = [scope.value for scope in Scope]


def needs(operation_id: str) -> tuple[str | None, str | None]:
    return NEEDS[OF_ONE_S_OWN.sub(r"\1\2", operation_id)]


@pytest.fixture
def guard(database: Database) -> Guard:
    return Guard(keyring=KeyRing(database, stamp=STAMP), metrics_token=TOKEN.encode())


def api(database: Database, registry: Registry, guard: Guard, job_broker: JobBroker | None = None) -> FastAPI:
    return create_api(
        database=database,
        broker=PostgresBroker(database),
        job_broker=job_broker,
        registry=registry,
        process_pass=process_nothing,
        version="0.1.0",
        cursor_secret=b"secret",
        guard=guard,
    )


@pytest.fixture
async def house(database: Database, registry: Registry, guard: Guard) -> AsyncIterator[House]:
    app = api(database, registry, guard)
    house = await keyed.house(app, database)
    async with house.client:
        await house.furnish()
        yield house
    await app.state.parts.waiting.close()
    await guard.keyring.close()


def path_of(template: str, names: dict[str, str]) -> str:
    return re.sub(r"{(\w+)}", lambda part: names[part[1]], template)


# What a route wants to read before it looks for what the path names.
BODIES = {"rescheduleOwnTask": {"runAfter": "2030-01-01T00:00:00Z"}}


async def walk(house: House, key: str | None, **names: str) -> dict[str, tuple[str, str, Response]]:
    """What every route answers to a key."""
    answers = {}
    for operation_id, method, template in OPERATIONS:
        path = path_of(template, house.names | names)
        headers = {} if key is None else bearer(key)
        answer = await house.client.request(method, path, headers=headers, json=BODIES.get(operation_id))
        answers[operation_id] = (method, template, answer)
    return answers


def told(answer: Response) -> tuple[Any, ...]:
    """All of an answer but for what is the request's own."""
    body = {name: value for name, value in answer.json().items() if name not in {"instance", "requestId"}}
    shown = {name: value for name, value in answer.headers.items() if name != "x-request-id"}
    return answer.status_code, body, {**shown, "content-length": None}


def test_the_table_has_every_route_and_no_other() -> None:
    assert {OF_ONE_S_OWN.sub(r"\1\2", operation_id) for operation_id, _, _ in OPERATIONS} == NEEDS.keys()


def test_every_route_says_what_it_needs(app: FastAPI) -> None:
    pages = {route.path for route in documentation.router(dict).routes if isinstance(route, GuardedRoute)}
    for route in app.routes:
        assert isinstance(route, GuardedRoute)
        if route.path in pages:
            assert route.need.operator is None
        else:
            scope, role = needs(route.unique_id)
            assert (route.need.key, route.need.operator) == (scope, role), route.path


def test_a_route_that_does_not_say_what_it_needs_cannot_be_made() -> None:
    async def says_nothing() -> None: ...

    with pytest.raises(TypeError, match="does not say who may call it"):
        GuardedRoute("/nowhere", says_nothing)
    with pytest.raises(TypeError):
        need_of(says_nothing)


async def test_without_a_key_that_works_nothing_is_answered_but_what_is_open(house: House) -> None:
    revoked = await house.company_key(house.acme)
    await keys.revoke(house.database, "acme", key_id(revoked))
    for key, error in [
        (None, None),
        (make("test", new_id()).text, "invalid_token"),
        ("tt_live_nonsense", "invalid_token"),
        (revoked, "invalid_token"),
    ]:
        for operation_id, (_, _, answer) in (await walk(house, key)).items():
            if needs(operation_id) == OPEN:
                assert answer.status_code == 200
                continue
            assert answer.status_code == 401, operation_id
            assert answer.json()["code"] == ("key_needed" if key is None else "invalid_key")
            challenge = answer.headers["www-authenticate"]
            assert challenge.startswith('Bearer realm="taketurns"')
            assert ("error=" in challenge) == (error is not None)
            assert error is None or f'error="{error}"' in challenge


async def test_another_company_s_key_finds_nothing_and_changes_nothing(house: House) -> None:  # fault 039
    key = await house.company_key(house.globex)
    before = await rows_of(house)
    theirs = await walk(house, key)
    nobodys = await walk(house, key, companyId=str(new_id()), **random_ids())
    for operation_id, (_, template, answer) in theirs.items():
        scope, _ = needs(operation_id)
        if needs(operation_id) == OPEN or (scope == "any" and "{companyId}" not in template):
            assert answer.status_code == 200
            continue
        if scope is None:
            assert (answer.status_code, answer.json()["code"]) == (403, "operator_needed"), operation_id
        elif "{companyId}" in template:
            assert (answer.status_code, answer.json()["code"]) == (404, "company_not_found"), operation_id
        elif "Id}" in template:
            assert answer.status_code == 404, operation_id
        if answer.status_code >= 400:
            assert told(answer) == told(nobodys[operation_id][2]), operation_id
    assert await rows_of(house) == before


async def test_a_key_without_the_scope_is_told_which_it_lacks(house: House) -> None:
    for scope in SCOPES:
        key = await house.company_key(house.acme, [other for other in SCOPES if other != scope])
        for operation_id, (_, _, answer) in (await walk(house, key, **random_ids())).items():
            if needs(operation_id)[0] != scope:
                continue
            assert (answer.status_code, answer.json()["code"]) == (403, "scope_needed"), operation_id
            assert scope in answer.json()["detail"]
            assert f'error="insufficient_scope", scope="{scope}"' in answer.headers["www-authenticate"]


async def test_a_key_with_its_scopes_is_let_in_and_keeps_off_what_is_the_operators(house: House) -> None:
    key = await house.company_key(house.acme)
    for operation_id, (_, _, answer) in (await walk(house, key, **random_ids())).items():
        if needs(operation_id)[0] is None and needs(operation_id) != OPEN:
            assert (answer.status_code, answer.json()["code"]) == (403, "operator_needed"), operation_id
        else:
            assert answer.status_code not in {401, 403}, operation_id


@pytest.mark.parametrize("role", list(Role))
async def test_an_operator_may_what_the_role_says(house: House, role: Role) -> None:
    key = await house.operator_key(role)
    before = await rows_of(house)
    for operation_id, (_, template, answer) in (await walk(house, key, companyId=str(new_id()))).items():
        wanted = needs(operation_id)[1]
        if wanted is not None and not role.includes(Role(wanted)):
            assert (answer.status_code, answer.json()["code"]) == (403, "role_needed"), operation_id
            assert wanted in answer.json()["detail"]
        elif OF_ONE_S_OWN.match(operation_id):
            assert answer.status_code in {400, 404, 415}, (operation_id, template)
            assert answer.status_code == 415 or answer.json()["code"] in {"company_needed", "jobs_not_configured"}
        else:
            assert answer.status_code not in {401, 403}, operation_id
    if role is Role.VIEWER:
        assert await rows_of(house) == before


def random_ids() -> dict[str, str]:
    return {name: str(new_id()) for name in ("taskId", "jobId", "scheduleId", "keyId")}


async def rows_of(house: House) -> list[Any]:
    """All that acme has, but for when its keys were used."""
    async with house.database.connection() as connection:
        cursor = await connection.execute(
            "select to_jsonb(t) from (select to_jsonb(c) from taketurns.companies c"
            " union all select to_jsonb(t) from taketurns.tasks t"
            " union all select to_jsonb(p) from taketurns.pending_tasks p"
            " union all select to_jsonb(s) from taketurns.schedules s"
            " union all select to_jsonb(k) - 'last_used_at' from taketurns.api_keys k where k.role is null"
            ") t (t) order by 1"
        )
        return await cursor.fetchall()


def key_id(key: str) -> UUID:
    found = id_of(key)
    assert found is not None
    return found


# Work done


async def test_a_company_that_is_not_the_key_s_is_not_looked_for(house: House) -> None:
    key = await house.company_key(house.globex)
    assert (await house.client.get("/companies/globex", headers=bearer(key))).status_code == 200
    async with house.database.transaction() as connection:
        for table in ("companies", "tasks", "schedules", "api_keys"):
            await connection.execute(f"lock table taketurns.{table} in access exclusive mode".encode())
        for company in ("acme", str(house.acme.id), "nobody", str(new_id()), "no company at all"):
            for path in ("", "/tasks", f"/tasks/{house.names['taskId']}", "/usage"):
                answer = await house.client.get(f"/companies/{company}{path}", headers=bearer(key))
                assert (answer.status_code, answer.json()["code"]) == (404, "company_not_found")


async def test_a_task_of_another_company_costs_what_one_costs_that_is_not_there(house: House) -> None:
    def plan(task_id: str) -> str:
        query, parameters = tasks._find_statement("taketurns", is_id=True)
        with psycopg.connect(house.database.url) as connection:
            rows = connection.execute(
                f"explain (analyze, buffers off, costs off, timing off, summary off) {query}".encode(),
                parameters | {"company": house.globex.id, "task_ids": [task_id]},
            ).fetchall()
        return re.sub(r"[0-9a-f]{8}-[0-9a-f-]{27}", "…", "\n".join(row[0] for row in rows))

    theirs, nobodys = plan(house.names["taskId"]), plan(str(new_id()))
    assert theirs == nobodys
    assert "tasks_pkey" in theirs


# What a request says of its key


@pytest.mark.parametrize(
    "header",
    [
        b"",
        b"Bearer",
        b"Bearer ",
        b"Basic YWRhOnNlY3JldA==",
        b"Token tt_live_x",
        b"Bearer one two",
        "Bearer clé-鍵-🔑".encode(),  # fault 022
        b"Bearer cl\xe9",
        b"Bearer " + b"x" * 10_000,
        b"Bearer tt_live_x\x00",
        b'Bearer "; drop',
    ],
)
async def test_what_is_no_key_is_refused_as_any_other(house: House, header: bytes) -> None:
    answer = await house.client.get("/companies/acme", headers=[(b"authorization", header)])
    assert answer.status_code == 401
    assert answer.headers["www-authenticate"].startswith('Bearer realm="taketurns"')
    assert answer.headers["www-authenticate"].isascii()


async def test_the_scheme_is_read_in_any_case_and_two_headers_are_none(house: House) -> None:
    key = (await house.company_key(house.acme)).encode()
    for scheme in (b"Bearer ", b"bearer ", b"BEARER  "):
        answer = await house.client.get("/companies/acme", headers=[(b"authorization", scheme + key)])
        assert answer.status_code == 200
    twice = [(b"authorization", b"Bearer " + key)] * 2
    assert (await house.client.get("/companies/acme", headers=twice)).status_code == 401


async def test_a_company_is_named_by_slug_or_id_in_any_case(house: House) -> None:
    key = bearer(await house.company_key(house.acme))
    for named in ("acme", str(house.acme.id), str(house.acme.id).upper()):
        assert (await house.client.get(f"/companies/{named}", headers=key)).json()["slug"] == "acme"


async def test_a_key_that_has_expired_says_so_to_who_has_it(house: House) -> None:
    key = await house.company_key(house.acme, expires=timedelta(hours=1))
    async with house.database.connection() as connection:
        await connection.execute("update taketurns.api_keys set expires_at = clock_timestamp()")
    answer = await house.client.get("/companies/acme", headers=bearer(key))
    assert answer.json()["detail"] == "the key has expired"
    assert 'error_description="the key has expired"' in answer.headers["www-authenticate"]


async def test_a_key_that_cannot_be_looked_up_is_503_and_never_401(  # fault 042
    house: House, database_url: str, registry: Registry
) -> None:
    key = bearer(await house.company_key(house.acme))
    small = Database(database_url, pool_size=2, pool_timeout=0.2, statement_timeout=0.3)
    await small.open()
    guard = Guard(keyring=KeyRing(small, stamp=STAMP))
    transport = ASGITransport(api(small, registry, guard), raise_app_exceptions=False)
    async with AsyncClient(transport=transport, base_url="http://api") as client:
        async with house.database.transaction() as connection:
            await connection.execute("lock table taketurns.api_keys in access exclusive mode")
            answer = await client.get("/companies/acme", headers=key)
            assert (answer.status_code, answer.json()["code"]) == (503, "unavailable")
            assert "retry-after" in answer.headers
            assert (await client.get("/health")).status_code == 200
        assert (await client.get("/companies/acme", headers=key)).status_code == 200
    await guard.keyring.close()
    await small.close()


# Paths without a company


async def test_paths_without_a_company_are_of_the_key_s_and_lead_to_each_other(house: House) -> None:
    key = bearer(await house.company_key(house.globex))
    made = await house.client.post("/tasks", headers=key, json={"type": "anything"})
    assert made.status_code == 201
    assert made.json()["companyId"] == str(house.globex.id)
    assert made.headers["location"] == f"/tasks/{made.json()['id']}"
    seen = await house.client.get(made.headers["location"], headers=key)
    assert seen.json().items() >= made.json().items()
    await house.client.post("/tasks", headers=key, json={"type": "anything"})
    page = await house.client.get("/tasks?limit=1", headers=key)
    assert page.links["next"]["url"].startswith("/tasks?")
    rest = await house.client.get(page.links["next"]["url"], headers=key)
    assert [task["id"] for task in rest.json()["tasks"]] == [made.json()["id"]]
    named = await house.client.get(f"/companies/globex/tasks?{page.links['next']['url'].split('?')[1]}", headers=key)
    assert named.json() == rest.json()
    for action in ("cancel", "retry"):
        assert (await house.client.post(f"{made.headers['location']}/{action}", headers=key)).status_code == 200
    assert (await house.client.get(f"{made.headers['location']}/events", headers=key)).status_code == 200
    theirs = await house.client.get(f"/tasks/{house.names['taskId']}", headers=key)
    assert (theirs.status_code, theirs.json()["code"]) == (404, "task_not_found")


async def test_an_idempotency_key_is_the_company_s_by_either_path(house: House) -> None:  # fault 033
    globex, acme = bearer(await house.company_key(house.globex)), bearer(await house.company_key(house.acme))
    once = {"idempotency-key": "one"}
    made = await house.client.post("/tasks", headers=globex | once, json={"type": "anything"})
    again = await house.client.post("/companies/globex/tasks", headers=globex | once, json={"type": "anything"})
    theirs = await house.client.post("/tasks", headers=acme | once, json={"type": "anything", "priority": 1})
    assert (made.status_code, again.status_code, theirs.status_code) == (201, 200, 201)
    assert again.json()["id"] == made.json()["id"] != theirs.json()["id"]


async def test_a_path_without_a_company_means_nothing_without_a_company_s_key(
    house: House, client: AsyncClient
) -> None:
    operator = bearer(await house.operator_key(Role.ADMIN))
    for answer in (await house.client.get("/tasks", headers=operator), await client.get("/tasks")):
        assert (answer.status_code, answer.json()["code"]) == (400, "company_needed")


async def test_a_job_is_its_company_s_by_either_path(  # fault 039
    database: Database, registry: Registry, guard: Guard, valkey_url: str, valkey_cell: str
) -> None:
    server = Server(valkey_url, cell=valkey_cell)
    app = api(database, registry, guard, RedisBroker(server))
    house = await keyed.house(app, database)
    async with house.client as client:
        acme, globex = [bearer(await house.company_key(company)) for company in (house.acme, house.globex)]
        made = await client.post("/jobs", headers=acme, json={"type": "anything"})
        path = f"/jobs/{made.json()['jobId']}"
        assert (made.status_code, made.headers["location"]) == (201, path)
        assert (await client.get(f"/companies/acme{path}", headers=acme)).json() == made.json()
        for method, action in [("GET", ""), ("GET", "/events"), ("POST", "/cancel"), ("POST", "/retry")]:
            theirs = await client.request(method, f"{path}{action}", headers=globex)
            nobodys = await client.request(method, f"/jobs/{new_id()}{action}", headers=globex)
            assert (theirs.status_code, theirs.json()["code"]) == (404, "job_not_found")
            assert told(theirs) == told(nobodys)
        assert (await client.get(path, headers=acme)).json() == made.json()
        cancelled = await client.post(f"{path}/cancel", headers=acme)
        assert (cancelled.status_code, cancelled.json()["status"]) == (200, "cancelled")
        (entry,) = (await client.get("/audit", headers=bearer(await house.operator_key(Role.VIEWER)))).json()["entries"]
        assert (entry["action"], entry["target"]) == ("cancelJob", made.json()["jobId"])
    await guard.keyring.close()
    await server.close()


# Metrics, and services without keys


async def test_the_token_of_the_metrics_opens_them_alone(house: House) -> None:
    token = bearer(TOKEN)
    assert (await house.client.get("/metrics", headers=token)).status_code == 200
    assert (await house.client.get("/companies", headers=token)).status_code == 401
    assert (await house.client.get("/metrics", headers=bearer("another-token-entirely"))).status_code == 401


async def test_the_token_of_the_metrics_is_asked_for_where_no_keys_are(database: Database, registry: Registry) -> None:
    guard = Guard(keyring=KeyRing(database), asks_for_keys=False, metrics_token=TOKEN.encode())
    transport = ASGITransport(api(database, registry, guard), raise_app_exceptions=False)
    async with AsyncClient(transport=transport, base_url="http://api") as client:
        assert (await client.get("/companies")).status_code == 200
        assert (await client.get("/metrics")).status_code == 401
        assert (await client.get("/metrics", headers=bearer(TOKEN))).status_code == 200


@pytest.mark.parametrize(
    ("address", "is_served"),
    [("127.0.0.1", True), ("[::1]", True), ("127.9.9.9", True), ("192.0.2.7", False), ("[2001:db8::1]", False)],
)
async def test_a_service_that_asks_for_no_keys_may_be_held_to_loopback(
    database: Database, registry: Registry, address: str, is_served: bool
) -> None:
    guard = Guard(keyring=KeyRing(database), asks_for_keys=False, on_loopback_only=True)
    transport = ASGITransport(api(database, registry, guard), raise_app_exceptions=False)
    async with AsyncClient(transport=transport, base_url=f"http://{address}:8000") as client:
        answer = await client.get("/companies")
        assert answer.status_code == (200 if is_served else 403)
        assert is_served or answer.json()["code"] == "not_on_loopback"
        for name in ("evil.example", "evil.example:8000", "localhost.evil.example"):
            assert (await client.get("/companies", headers={"host": name})).status_code == 403
        assert (await client.get("/health")).status_code == 200


def test_every_scope_that_can_be_granted_opens_something() -> None:
    assert {scope for scope, _ in NEEDS.values()} - {None, "any"} == set(SCOPES)
    assert set(SCOPES) <= set(GRANTS)
