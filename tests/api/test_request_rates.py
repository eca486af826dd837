"""How often a company's keys may ask, and how often an address may come without a key that works."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any

import pytest
from httpx2 import ASGITransport, AsyncClient, Response

from taketurns.api.application import create_api
from taketurns.api.guard import Guard
from taketurns.brokers.postgres import PostgresBroker
from taketurns.companies.keyring import FRESH_SECONDS, KeyRing
from taketurns.companies.wrong_keys import WrongKeys
from taketurns.engine import key as form
from taketurns.engine.key import Role
from taketurns.engine.rate import Rate
from taketurns.engine.registry import Registry
from taketurns.storage.database import Database
from taketurns.storage.ids import new_id
from tests.api import keyed
from tests.api.conftest import process_nothing
from tests.api.keyed import STAMP, House, bearer
from tests.waiting import eventually

DAILY = {"requests": 1, "seconds": 86_400, "burst": 3}
HOME, ELSEWHERE = "192.0.2.1", "192.0.2.2"
TOKEN = "a-token-for-the-metrics"


@dataclass
class Process:
    """One API process, whose keyring has a clock of its own."""

    guard: Guard
    client: AsyncClient
    seconds: list[float] = field(default_factory=lambda: [0.0])


Begin = Callable[..., Awaitable[Process]]


@pytest.fixture
async def begin(database: Database, registry: Registry) -> AsyncIterator[Begin]:
    """Begin an API process over the same database, as seen from an address."""
    begun = list[Process]()

    async def begin(*, address: str = HOME, **options: Any) -> Process:
        seconds = [0.0]
        guard = Guard(keyring=KeyRing(database, stamp=STAMP, clock=lambda: seconds[0]), **options)
        app = create_api(
            database=database,
            broker=PostgresBroker(database),
            registry=registry,
            process_pass=process_nothing,
            version="0.1.0",
            cursor_secret=b"secret",
            guard=guard,
        )
        transport = ASGITransport(app, raise_app_exceptions=False, client=(address, 1))
        process = Process(guard, AsyncClient(transport=transport, base_url="http://api"), seconds)
        begun.append(process)
        return process

    yield begin
    for process in begun:
        await process.client.aclose()
        await process.guard.keyring.close()


@pytest.fixture
async def process(begin: Begin) -> Process:
    return await begin()


@pytest.fixture
async def house(process: Process, database: Database) -> House:
    return await keyed.house_of(process.client, database)


async def limit(house: House, rate: dict[str, int] | None, company: str = "acme") -> None:
    admin = bearer(await house.operator_key(Role.ADMIN))
    changed = await house.client.patch(f"/companies/{company}", headers=admin, json={"requestRate": rate})
    assert changed.json()["requestRate"] == rate


async def codes(client: AsyncClient, count: int, *, key: str) -> list[int]:
    return [(await client.get("/companies/acme", headers=bearer(key))).status_code for _ in range(count)]


def unknown_key() -> str:
    """One of the right form, which only a look can tell from others."""
    return form.make("test", new_id()).text


# A company's rate


async def test_a_rate_of_requests_is_set_shown_with_who_set_it_and_taken_away(house: House) -> None:
    admin = bearer(await house.operator_key(Role.ADMIN))
    changed = await house.client.patch(
        "/companies/acme", headers=admin, json={"requestRate": {"requests": 5, "seconds": 1}}
    )
    assert changed.json()["requestRate"] == {"requests": 5, "seconds": 1, "burst": 5}
    assert changed.json()["limitsSetBy"] == "admin"
    noted = (await house.client.get("/audit", headers=admin)).json()["entries"][0]
    assert noted["details"] == {"requestRate": {"requests": 5, "seconds": 1, "burst": 5}}
    await limit(house, None)
    made = await house.client.post("/companies", headers=admin, json={"name": "New", "requestRate": DAILY})
    assert (made.status_code, made.json()["requestRate"]) == (201, DAILY)


@pytest.mark.parametrize(
    ("rate", "pointer"),
    [
        ({"requests": 0, "seconds": 1}, "/requestRate/requests"),
        ({"requests": 1}, "/requestRate/seconds"),
        ({"requests": 1, "seconds": 86_401}, "/requestRate/seconds"),
        ({"requests": 1, "seconds": 1, "burst": 100_001}, "/requestRate/burst"),
        ({"tasks": 1, "seconds": 1}, "/requestRate/requests"),
    ],
)
async def test_what_is_no_rate_is_refused_by_its_name(house: House, rate: dict[str, int], pointer: str) -> None:
    admin = bearer(await house.operator_key(Role.ADMIN))
    answer = await house.client.patch("/companies/acme", headers=admin, json={"requestRate": rate})
    assert answer.status_code == 422
    assert pointer in [error["pointer"] for error in answer.json()["errors"]]


async def test_a_company_that_asks_too_often_is_told_when_it_may_again(house: House) -> None:
    await limit(house, DAILY)
    first, second = [await house.company_key(house.acme) for _ in range(2)]
    answers = [await house.client.get("/companies/acme", headers=bearer(key)) for key in (first, second, first)]
    assert [answer.status_code for answer in answers] == [200] * 3
    assert [answer.headers["ratelimit"].split(";")[1] for answer in answers] == ["r=2", "r=1", "r=0"]
    refused = await house.client.post("/companies/acme/tasks", headers=bearer(second), json={"type": "anything"})
    assert (refused.status_code, refused.json()["code"]) == (429, "too_many_requests")
    assert refused.json()["retryable"] is True
    assert refused.headers["ratelimit-policy"] == '"requests";q=1;w=86400'
    assert refused.headers["ratelimit"].startswith('"requests";r=0;t=')
    assert 86_000 < int(refused.headers["retry-after"]) <= 86_400
    assert "next may come in" in refused.json()["detail"]


async def test_nobody_else_is_held_to_a_company_s_rate(house: House) -> None:
    await limit(house, DAILY)
    assert (await codes(house.client, 4, key=await house.company_key(house.acme)))[-1] == 429
    globex = await house.client.get("/companies/globex", headers=bearer(await house.company_key(house.globex)))
    assert (globex.status_code, "ratelimit" in globex.headers) == (200, False)
    viewer = bearer(await house.operator_key(Role.VIEWER))
    for path in ("/companies/acme", "/metrics"):
        assert (await house.client.get(path, headers=viewer)).status_code == 200
    for path in ("/health", "/ready", "/limits"):
        assert (await house.client.get(path)).status_code == 200


async def test_what_is_refused_for_another_reason_counts_and_comes_after_it(house: House) -> None:
    await limit(house, DAILY)
    key = bearer(await house.company_key(house.acme, scopes=["usage:read"]))
    answers = [
        await house.client.get(path, headers=key) for path in ("/tasks", "/companies/globex", "/audit", "/tasks")
    ]
    assert [answer.status_code for answer in answers] == [403, 404, 403, 429]
    assert all("ratelimit" in answer.headers for answer in answers)


async def test_quotas_and_the_rate_are_told_beside_each_other(house: House) -> None:
    admin = bearer(await house.operator_key(Role.ADMIN))
    await house.client.patch("/companies/acme", headers=admin, json={"quotas": {"hour": 10}, "requestRate": DAILY})
    key = bearer(await house.company_key(house.acme))
    made = await house.client.post("/tasks", headers=key, json={"type": "anything"})
    assert made.status_code == 201
    told = made.headers["ratelimit"].split(", ")
    assert [one.split(";")[:2] for one in told] == [['"hour"', "r=9"], ['"requests"', "r=2"]]
    assert len(made.headers["ratelimit-policy"].split(", ")) == 2


async def test_a_key_of_idempotency_does_not_keep_a_refusal(house: House) -> None:  # fault 031
    await limit(house, DAILY)
    key = bearer(await house.company_key(house.acme))
    await codes(house.client, 3, key=key["authorization"].split()[1])
    request: dict[str, Any] = {"headers": {**key, "idempotency-key": "k"}, "json": {"type": "anything"}}
    assert (await house.client.post("/tasks", **request)).status_code == 429
    await limit(house, None)
    made = await house.client.post("/tasks", **request)
    assert (made.status_code, "idempotent-replayed" in made.headers) == (201, False)


async def test_a_changed_rate_acts_at_once_here_and_elsewhere_within_seconds(house: House, begin: Begin) -> None:
    other = await begin()
    key = await house.company_key(house.acme)
    assert await codes(other.client, 5, key=key) == [200] * 5
    await limit(house, DAILY)
    assert await codes(house.client, 4, key=key) == [200, 200, 200, 429]
    other.seconds[0] += FRESH_SECONDS
    assert await codes(other.client, 4, key=key) == [200, 200, 200, 429]
    await limit(house, {"requests": 1, "seconds": 86_400, "burst": 5})
    assert await codes(house.client, 3, key=key) == [200, 200, 429]  # what came before is not forgotten


async def test_processes_that_know_of_each_other_share_a_rate_and_others_multiply_it(
    house: House, begin: Begin
) -> None:
    await limit(house, {"requests": 1, "seconds": 86_400, "burst": 4})
    key = await house.company_key(house.acme)
    for processes, passed in ((2, 4), (1, 8)):
        pair = [await begin(processes=processes) for _ in range(2)]
        answers = [code for one in pair for code in await codes(one.client, 6, key=key)]
        assert answers.count(200) == passed


async def test_a_rate_is_counted_without_the_database(house: House) -> None:
    await limit(house, DAILY)
    key = bearer(await house.company_key(house.acme, scopes=["usage:read"]))
    assert (await house.client.get("/companies/acme", headers=key)).status_code == 200
    async with house.database.transaction() as connection:
        await connection.execute("lock table taketurns.api_keys, taketurns.companies in access exclusive mode")
        answers = [await house.client.get("/tasks", headers=key) for _ in range(3)]
    assert [answer.status_code for answer in answers] == [403, 403, 429]


# Addresses without a key that works


async def test_an_address_that_guesses_is_refused_before_anybody_looks(house: House, begin: Begin) -> None:
    guarded = await begin(wrong_keys=WrongKeys(Rate(3, 86_400, 3)))
    answers = [await guarded.client.get("/tasks", headers=bearer(unknown_key())) for _ in range(5)]
    assert [answer.status_code for answer in answers] == [401] * 3 + [429] * 2
    assert answers[-1].json()["code"] == "too_many_wrong_keys"
    assert 28_000 < int(answers[-1].headers["retry-after"]) <= 28_800
    late = await house.company_key(house.acme)
    async with house.database.transaction() as connection:
        await connection.execute("lock table taketurns.api_keys in access exclusive mode")
        assert (await guarded.client.get("/tasks", headers=bearer(late))).status_code == 429
    assert (await guarded.client.get("/health")).status_code == 200


async def test_an_address_that_guesses_many_keys_at_once_has_no_more_looked_at(house: House, begin: Begin) -> None:
    guarded = await begin(wrong_keys=WrongKeys(Rate(3, 86_400, 3)))
    answers = await asyncio.gather(
        *(guarded.client.get("/tasks", headers=bearer(unknown_key())) for _ in range(40)),
        *(guarded.client.get("/tasks") for _ in range(10)),
    )
    assert Counter(answer.status_code for answer in answers) == {401: 3, 429: 47}


async def test_many_good_keys_that_come_at_once_from_one_address_are_all_served(house: House, begin: Begin) -> None:
    guarded = await begin(wrong_keys=WrongKeys(Rate(3, 86_400, 3)))
    good = [await house.company_key(house.acme) for _ in range(12)]
    for _ in range(2):
        await guarded.client.get("/tasks")
    answers = await asyncio.gather(*(guarded.client.get("/tasks", headers=bearer(key)) for key in good))
    assert [answer.status_code for answer in answers] == [200] * 12


async def test_keys_that_are_known_already_go_on_at_an_address_that_guesses(house: House, begin: Begin) -> None:
    guarded = await begin(wrong_keys=WrongKeys(Rate(3, 86_400, 3)))
    good, revoked = [await house.company_key(house.acme) for _ in range(2)]
    assert await codes(guarded.client, 1, key=good) == await codes(guarded.client, 1, key=revoked) == [200]
    admin = bearer(await house.operator_key(Role.ADMIN))
    revoke = f"/companies/acme/keys/{form.id_of(revoked)}/revoke"
    assert (await house.client.post(revoke, headers=admin)).status_code == 200
    for _ in range(3):
        await guarded.client.get("/tasks")
    guarded.seconds[0] += FRESH_SECONDS
    assert await codes(guarded.client, 5, key=good) == [200] * 5
    assert (await codes(guarded.client, 2, key=revoked))[-1] == 429
    assert await codes(guarded.client, 1, key=good[:-1] + ("a" if good[-1] != "a" else "b")) == [429]


async def test_nobody_waits_for_all_the_looks_that_came_before(
    house: House, begin: Begin, database: Database
) -> None:  # fault 043
    guarded = await begin(wrong_keys=WrongKeys(Rate(1, 86_400, 1), patience_seconds=0.0))
    good = bearer(await house.company_key(house.acme))
    async with database.transaction() as connection:
        await connection.execute("lock table taketurns.api_keys in access exclusive mode")
        first = asyncio.create_task(guarded.client.get("/tasks", headers=good))
        await eventually(lambda: bool(guarded.guard.keyring._reads))
        late = [await guarded.client.get("/tasks", headers=good) for _ in range(2)]
        assert [(answer.status_code, answer.json()["code"]) for answer in late] == [(503, "unavailable")] * 2
        assert not first.done()
    assert (await first).status_code == 200
    assert await codes(guarded.client, 3, key=good["authorization"].split()[1]) == [200] * 3


async def test_other_addresses_and_other_networks_are_not_the_one_that_guesses(house: House, begin: Begin) -> None:
    wrong_keys = WrongKeys(Rate(2, 86_400, 2))
    guesser = await begin(wrong_keys=wrong_keys, address="2001:db8:1:2::1")
    neighbour = await begin(wrong_keys=wrong_keys, address="2001:db8:1:2::2")
    stranger = await begin(wrong_keys=wrong_keys, address=ELSEWHERE)

    async def guess(process: Process) -> Response:
        return await process.client.get("/tasks", headers=bearer("tt_wrong"))

    assert [(await guess(process)).status_code for process in (guesser, guesser, neighbour, stranger)] == [
        401,
        401,
        429,
        401,
    ]


async def test_the_token_of_the_metrics_is_taken_at_an_address_that_guesses(house: House, begin: Begin) -> None:
    guarded = await begin(wrong_keys=WrongKeys(Rate(1, 86_400, 1)), metrics_token=TOKEN.encode())
    assert [(await guarded.client.get("/metrics")).status_code for _ in range(2)] == [401, 429]
    assert (await guarded.client.get("/metrics", headers=bearer(TOKEN))).status_code == 200
