"""Tokens of an identity provider at the API: they open what keys open, and are told nothing when they do not work."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest
from httpx2 import Response

from taketurns.api.guard import Guard
from taketurns.companies.keyring import KeyRing
from taketurns.companies.signing_keys import SigningKeys
from taketurns.companies.tokens import Tokens
from taketurns.engine.key import Role
from taketurns.engine.registry import Registry
from taketurns.engine.token import ClaimNames
from taketurns.storage.database import Database
from tests.api import keyed
from tests.api.keyed import STAMP, House, bearer
from tests.api.test_guard import SCOPES, TOKEN, api, random_ids, told, walk
from tests.identity import AUDIENCE, DISCOVERY, KEYS, IdentityProvider


@pytest.fixture
def provider() -> Iterator[IdentityProvider]:
    provider = IdentityProvider()
    yield provider
    provider.stop()


@pytest.fixture
async def house(database: Database, registry: Registry, provider: IdentityProvider) -> AsyncIterator[House]:
    tokens = Tokens(
        database,
        SigningKeys(provider.issuer),
        audience=AUDIENCE,
        algorithms=["RS256"],
        names=ClaimNames(role="role"),
    )
    guard = Guard(keyring=KeyRing(database, stamp=STAMP), tokens=tokens, metrics_token=TOKEN.encode())
    app = api(database, registry, guard)
    house = await keyed.house(app, database)
    async with house.client:
        await house.furnish()
        yield house
    await app.state.parts.waiting.close()
    await guard.close()


def statuses(answers: dict[str, tuple[str, str, Response]]) -> dict[str, int]:
    return {operation_id: answer.status_code for operation_id, (_, _, answer) in answers.items()}


@pytest.mark.parametrize("scopes", [SCOPES, ["tasks:read", "usage:read"], []])
async def test_a_token_opens_what_a_key_with_its_scopes_opens(
    house: House, provider: IdentityProvider, scopes: list[str]
) -> None:
    key, token = await house.company_key(house.acme, scopes), provider.token(scope=" ".join(scopes))
    ids = random_ids()
    assert statuses(await walk(house, token, **ids)) == statuses(await walk(house, key, **ids))
    theirs = await walk(house, token, companyId="globex", **ids)
    assert statuses(theirs) == statuses(await walk(house, key, companyId="globex", **ids))


@pytest.mark.parametrize("role", [Role.VIEWER, Role.ADMIN])
async def test_an_operator_s_token_opens_what_a_key_of_the_role_opens(
    house: House, provider: IdentityProvider, role: Role
) -> None:
    key, token = await house.operator_key(role), provider.token(company=None, role=role.value)
    nobody = {"companyId": "00000000-0000-0000-0000-000000000000", **random_ids()}
    assert statuses(await walk(house, token, **nobody)) == statuses(await walk(house, key, **nobody))


async def test_what_a_token_changes_is_in_the_audit_with_its_subject_and_issuer(
    house: House, provider: IdentityProvider
) -> None:
    token = bearer(provider.token(sub="ada|7", scope="tasks:write"))
    operator = bearer(provider.token(sub="olga", company=None, role="admin"))
    task = house.names["taskId"]
    assert (await house.client.post(f"/tasks/{task}/cancel", headers=token)).status_code == 200
    assert (await house.client.patch("/companies/acme", headers=operator, json={"weight": 2})).status_code == 200
    entries = (await house.client.get("/audit?limit=2", headers=operator)).json()["entries"]
    seen = [(one["action"], one["actorKind"], one["actorName"], one["keyId"], one["issuer"]) for one in entries]
    assert seen == [
        ("changeCompany", "operator", "olga", None, provider.issuer),
        ("cancelTask", "company", "ada|7", None, provider.issuer),
    ]
    assert (await house.client.get("/companies/acme", headers=operator)).json()["limitsSetBy"] == "olga"


async def test_whatever_is_wrong_with_a_token_the_answer_is_the_same(house: House, provider: IdentityProvider) -> None:
    wrong: list[dict[str, Any]] = [
        {"exp": 1},
        {"nbf": 2**33},
        {"aud": "another"},
        {"iss": "https://another.example"},
        {"company": "nobody"},
        {"company": None},
        {"number": 2},
        {"algorithm": "RS512"},
        {"header": {"kid": None}},
        {"header": {"kid": "unknown"}},
        {"padding": "x" * 9_000},
    ]
    tokens = [*(provider.token(**claims) for claims in wrong), provider.token()[:-4], "x", "a.b.c", TOKEN]
    answers = [await house.client.get("/companies/acme", headers=bearer(token)) for token in tokens]
    assert {repr(told(answer)) for answer in answers} == {repr(told(answers[0]))}
    assert (answers[0].status_code, answers[0].json()["code"]) == (401, "invalid_token")
    assert answers[0].json()["detail"] == "the token is not one that works here"
    assert answers[0].headers["www-authenticate"] == 'Bearer realm="taketurns", error="invalid_token"'


async def test_a_missing_scope_and_a_lesser_role_are_told(house: House, provider: IdentityProvider) -> None:
    token = bearer(provider.token(scope="tasks:read"))
    answer = await house.client.post("/tasks", headers=token, json={"type": "anything"})
    assert (answer.status_code, answer.json()["code"]) == (403, "scope_needed")
    assert answer.headers["www-authenticate"].endswith('error="insufficient_scope", scope="tasks:write"')
    viewer = bearer(provider.token(company=None, role="viewer"))
    answer = await house.client.post("/companies", headers=viewer, json={"name": "New"})
    assert (answer.status_code, answer.json()["code"]) == (403, "role_needed")


async def test_an_outage_of_the_identity_provider_is_503_for_tokens_that_cannot_be_checked(
    house: House, provider: IdentityProvider
) -> None:
    provider.stop()
    for _ in range(3):
        answer = await house.client.get("/companies/acme", headers=bearer(provider.token()))
        assert (answer.status_code, answer.json()["code"]) == (503, "identity_provider_unavailable")
        assert answer.json()["retryable"]
        assert "retry-after" in answer.headers
    key = bearer(await house.company_key(house.acme))
    assert (await house.client.get("/companies/acme", headers=key)).status_code == 200
    assert (await house.client.get("/metrics", headers=bearer(TOKEN))).status_code == 200
    provider.start()


async def test_keys_are_asked_of_nobody_else(house: House, provider: IdentityProvider) -> None:
    key = await house.company_key(house.acme)
    assert (await house.client.get("/companies/acme", headers=bearer(key))).status_code == 200
    wrong = await house.client.get("/companies/acme", headers=bearer("tt_live_nonsense"))
    assert (wrong.status_code, wrong.json()["code"]) == (401, "invalid_key")
    assert provider.asked == []
    for _ in range(3):
        assert (await house.client.get("/companies/acme", headers=bearer(provider.token()))).status_code == 200
    assert provider.asked == [DISCOVERY, KEYS]


async def test_a_deleted_company_s_tokens_end_with_it(house: House, provider: IdentityProvider) -> None:
    token, admin = bearer(provider.token()), bearer(provider.token(company=None, role="admin"))
    assert (await house.client.get("/companies/acme", headers=token)).status_code == 200
    assert (await house.client.delete("/companies/acme?force=true", headers=admin)).status_code == 204
    assert (await house.client.get("/companies/acme", headers=token)).status_code == 401
