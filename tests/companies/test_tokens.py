"""Tokens of an identity provider: whose they are, and what makes one that does not work."""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
import time
from collections.abc import AsyncIterator, Iterator
from typing import Any

import jwt
import pytest
from cryptography.hazmat.primitives import serialization

from taketurns.companies import directory, tokens
from taketurns.companies.access import CompanyPrincipal, OperatorPrincipal
from taketurns.companies.directory import Company
from taketurns.companies.errors import IdentityProviderUnavailable, InvalidToken
from taketurns.companies.keyring import FRESH_SECONDS
from taketurns.companies.signing_keys import SigningKeys
from taketurns.companies.tokens import Tokens
from taketurns.engine import token
from taketurns.engine.errors import Unavailable
from taketurns.engine.key import Role, Scope
from taketurns.engine.token import ClaimNames
from taketurns.storage.database import Database
from tests.companies.clock import Clock
from tests.identity import AUDIENCE, IdentityProvider, private_key, public_jwk

ALGORITHMS = ["RS256", "ES256"]


@pytest.fixture
def provider() -> Iterator[IdentityProvider]:
    provider = IdentityProvider()
    provider.keys += [public_jwk("curve", "ES256"), public_jwk("longer", "ES384")]
    yield provider
    provider.stop()


@pytest.fixture
async def taken(database: Database, provider: IdentityProvider, clock: Clock) -> AsyncIterator[Tokens]:
    taken = Tokens(
        database,
        SigningKeys(provider.issuer),
        audience=AUDIENCE,
        algorithms=ALGORITHMS,
        names=ClaimNames(role="role"),
        leeway_seconds=30,
        clock=clock,
    )
    yield taken
    await taken.close()


async def works(taken: Tokens, text: str) -> bool:
    try:
        return (await taken.principal(text.encode())).name == "ada"
    except InvalidToken:
        return False


async def test_a_token_with_a_company_is_the_company_s_with_the_scopes_that_it_names(
    provider: IdentityProvider, taken: Tokens, acme: Company
) -> None:
    for company in ("acme", str(acme.id), str(acme.id).upper()):
        for scopes in ("tasks:read jobs:* openid email", ["tasks:read", "jobs:read", "jobs:write", 7]):
            made = provider.token(company=company, scope=scopes)
            granted = frozenset({Scope.TASKS_READ, Scope.JOBS_READ, Scope.JOBS_WRITE})
            principal = CompanyPrincipal(None, "ada", acme.id, "acme", granted, provider.issuer)
            assert await taken.principal(made.encode()) == principal


async def test_a_token_with_a_role_and_no_company_is_an_operator_s(provider: IdentityProvider, taken: Tokens) -> None:
    made = provider.token(company=None, role=["staff", "operator", "viewer"])
    principal = OperatorPrincipal(None, "ada", Role.OPERATOR, provider.issuer)
    assert await taken.principal(made.encode()) == principal


async def test_a_company_s_administrator_is_no_operator(
    provider: IdentityProvider, taken: Tokens, acme: Company
) -> None:
    made = provider.token(role="admin")
    found = await taken.principal(made.encode())
    assert isinstance(found, CompanyPrincipal)
    assert found.scopes == frozenset()


async def test_a_token_may_be_signed_by_any_algorithm_that_is_set(
    provider: IdentityProvider, taken: Tokens, acme: Company
) -> None:
    made = provider.token(algorithm="ES256", header={"kid": "curve"})
    assert (await taken.principal(made.encode())).name == "ada"


@pytest.mark.parametrize(
    "claims",
    [
        {"exp": None},
        {"exp": 1_000_000_000},
        {"exp": "soon"},
        {"exp": 1e400},
        {"nbf": 2**33},
        {"iat": 2**33},
        {"aud": None},
        {"aud": "https://another.example"},
        {"aud": ["https://another.example"]},
        {"iss": None},
        {"iss": "https://another.example"},
        {"sub": None},
        {"sub": ""},
        {"sub": "x" * 256},
        {"sub": "a\0b"},
        {"sub": "\ud800"},
        {"company": None},
        {"company": "nobody"},
        {"company": "00000000-0000-0000-0000-000000000000"},
        {"company": "no company at all"},
        {"company": "a\0b"},
        {"company": ["acme"]},
        {"company": {"acme": True}},
        {"company": ""},
        {"company": "", "role": "admin"},
        {"company": None, "role": "king"},
        {"company": None, "role": ["Admin", 7]},
        {"company": None, "role": {"admin": True}},
        {"header": {"kid": None}},
        {"header": {"kid": "unknown"}},
        {"header": {"crit": ["exp"]}},
        {"header": {"kid": "curve"}},
        {"algorithm": "ES256"},
        {"algorithm": "ES384", "header": {"kid": "longer"}},
        {"algorithm": "RS512"},
        {"number": 2},
        {"padding": "x" * token.LENGTH_MAX},
    ],
    ids=lambda claims: json.dumps(claims)[:40],
)
async def test_a_token_that_is_not_as_it_must_be_does_not_work(
    provider: IdentityProvider, taken: Tokens, acme: Company, claims: dict[str, Any]
) -> None:
    assert await works(taken, provider.token())
    with pytest.raises(InvalidToken):
        await taken.principal(provider.token(**claims).encode())


def part(told: Any) -> str:
    return base64.urlsafe_b64encode(json.dumps(told).encode()).rstrip(b"=").decode()


def unsigned(provider: IdentityProvider) -> str:
    _, claims, _ = provider.token().split(".")
    return f"{part({'alg': 'none', 'kid': 'first'})}.{claims}."


def signed_with_the_public_key(provider: IdentityProvider) -> str:
    """The confusion of algorithms: the public key, which everybody has, as a shared secret."""
    public = private_key("RS256").public_key()
    shared = public.public_bytes(serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo)
    _, claims, _ = provider.token().split(".")
    signed = f"{part({'alg': 'HS256', 'kid': 'first'})}.{claims}"
    digest = hmac.digest(shared, signed.encode(), hashlib.sha256)
    return f"{signed}.{base64.urlsafe_b64encode(digest).rstrip(b'=').decode()}"


def with_other_claims(provider: IdentityProvider) -> str:
    header, _, signature = provider.token().split(".")
    claims = jwt.decode(provider.token(), options={"verify_signature": False})
    return f"{header}.{part({**claims, 'company': 'globex'})}.{signature}"


def with_a_key_of_its_own(provider: IdentityProvider) -> str:
    own = public_jwk("own", "RS256", 2)
    return provider.token(header={"jwk": own, "kid": "own", "jku": "https://own.example"}, number=2)


@pytest.mark.parametrize("forge", [unsigned, signed_with_the_public_key, with_other_claims, with_a_key_of_its_own])
async def test_a_forged_token_does_not_work(
    provider: IdentityProvider, taken: Tokens, acme: Company, forge: Any
) -> None:
    with pytest.raises(InvalidToken):
        await taken.principal(forge(provider).encode())


@pytest.mark.parametrize(
    "text",
    [
        b"x",
        b"..",
        b"a.b.c",
        "schlüssel".encode(),
        b"\xff\xfe",
        f"{part(7)}.{part({})}.".encode(),
        f"{part({'alg': ['RS256'], 'kid': 'first'})}.{part({})}.".encode(),
        f"{part({'alg': 'RS256', 'kid': ['first']})}.{part({})}.".encode(),
        base64.urlsafe_b64encode(b"[" * 6_000) + b".e30.",
        base64.urlsafe_b64encode(b'{"alg":' + b"9" * 5_000 + b"}") + b".e30.",
    ],
)
async def test_what_is_no_token_does_not_work(taken: Tokens, provider: IdentityProvider, text: bytes) -> None:
    with pytest.raises(InvalidToken):
        await taken.principal(text)
    assert provider.asked == []


async def test_clocks_may_be_apart_by_the_leeway(provider: IdentityProvider, taken: Tokens, acme: Company) -> None:
    now = int(time.time())
    for claim, sign in [("exp", -1), ("nbf", 1), ("iat", 1)]:
        assert await works(taken, provider.token(**{claim: now + sign * 5}))
        assert not await works(taken, provider.token(**{claim: now + sign * 300}))


async def test_a_rotation_in_the_middle_is_followed_and_the_old_tokens_end_with_their_key(
    database: Database, provider: IdentityProvider, acme: Company, clock: Clock
) -> None:
    taken = Tokens(
        database,
        SigningKeys(provider.issuer, clock=clock),
        audience=AUDIENCE,
        algorithms=ALGORITHMS,
        names=ClaimNames(),
    )
    old, new = provider.token(), provider.token(header={"kid": "second"}, number=2)
    assert await works(taken, old)
    provider.keys = [public_jwk("second", "RS256", 2)]
    assert not await works(taken, new)  # the provider was asked a moment ago
    assert await works(taken, old)
    clock.now += 10
    assert await works(taken, new)
    assert not await works(taken, old)
    await taken.close()


async def test_an_outage_before_the_first_token_is_told_as_one(
    provider: IdentityProvider, taken: Tokens, acme: Company
) -> None:
    provider.stop()
    with pytest.raises(IdentityProviderUnavailable):
        await taken.principal(provider.token().encode())
    provider.start()


async def test_a_company_is_looked_up_once_in_a_while(
    database: Database, provider: IdentityProvider, taken: Tokens, acme: Company, clock: Clock
) -> None:
    made = provider.token()
    assert await works(taken, made)
    await directory.delete(database, acme.id)
    assert await works(taken, made)
    clock.now += FRESH_SECONDS
    assert not await works(taken, made)
    again = await directory.create(database, name="Acme", slug="acme")
    found = await taken.principal(made.encode())
    assert isinstance(found, CompanyPrincipal)
    assert found.company_id == again.id
    await directory.delete(database, again.id)
    taken.forget_company(again.id)
    assert not await works(taken, made)


async def test_only_so_many_companies_are_remembered(
    database: Database, provider: IdentityProvider, taken: Tokens, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tokens, "MOST_REMEMBERED", 3)
    for number in range(5):
        await directory.create(database, name="C", slug=f"company-{number}")
        assert await works(taken, provider.token(company=f"company-{number}"))
    assert list(taken._companies) == ["company-2", "company-3", "company-4"]


async def test_a_company_that_cannot_be_looked_up_is_no_wrong_token(provider: IdentityProvider) -> None:
    away = Database("postgresql://nobody@127.0.0.1:1/none", pool_timeout=0.1)
    await away.open()
    taken = Tokens(away, SigningKeys(provider.issuer), audience=AUDIENCE, algorithms=ALGORITHMS, names=ClaimNames())
    with pytest.raises(Unavailable):
        await taken.principal(provider.token().encode())
    await taken.close()
    await away.close()
