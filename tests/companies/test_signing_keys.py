"""The keys of an identity provider: which are used, how often they are asked for, and what becomes of an outage."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest

from taketurns.companies import signing_keys
from taketurns.companies.errors import IdentityProviderUnavailable
from taketurns.companies.signing_keys import KEPT_SECONDS, LIFETIME_SECONDS, PAUSE_SECONDS, SigningKeys
from taketurns.engine import token
from tests.companies.clock import Clock
from tests.identity import DISCOVERY, KEYS, IdentityProvider, public_jwk
from tests.waiting import PATIENCE, eventually


@pytest.fixture
def provider() -> Iterator[IdentityProvider]:
    provider = IdentityProvider()
    yield provider
    provider.stop()


@pytest.fixture
async def known(provider: IdentityProvider, clock: Clock) -> AsyncIterator[SigningKeys]:
    known = SigningKeys(provider.issuer, clock=clock)
    yield known
    await known.aclose()


async def is_found(known: SigningKeys, key_id: str) -> bool:
    return await known.find(key_id) is not None


def fits(key: signing_keys.SigningKey) -> set[str]:
    return {algorithm for algorithm in token.ALGORITHMS if key.fits(algorithm)}


async def test_keys_of_every_kind_are_found_and_fit_no_algorithm_but_theirs(
    provider: IdentityProvider, known: SigningKeys
) -> None:
    provider.keys = [
        public_jwk("rsa", "RS256"),
        {**public_jwk("rsa for one", "PS256"), "alg": "PS256"},
        *(public_jwk(algorithm, algorithm) for algorithm in ("ES256", "ES384", "ES512", "EdDSA")),
    ]
    found = await known.read()
    assert {key_id: fits(key) for key_id, key in found.items()} == {
        "rsa": {"RS256", "RS384", "RS512", "PS256", "PS384", "PS512"},
        "rsa for one": {"PS256"},
        **{algorithm: {algorithm} for algorithm in ("ES256", "ES384", "ES512", "EdDSA")},
    }
    assert provider.asked == [DISCOVERY, KEYS]


async def test_keys_that_signatures_must_not_be_checked_with_are_left_out(
    provider: IdentityProvider, known: SigningKeys
) -> None:
    good = public_jwk("good", "RS256")
    provider.keys = [
        {**good, "kid": "of encryption", "use": "enc"},
        {**good, "kid": "that signs", "key_ops": ["sign"]},
        {**good, "kid": "for encryption", "alg": "RSA-OAEP"},
        {name: value for name, value in good.items() if name != "kid"},
        {**good, "kid": 7},
        {**good, "kid": "broken", "n": "!"},
        {**good, "kid": "of nothing", "kty": "new"},
        {"kid": "shared", "kty": "oct", "k": "c2VjcmV0c2VjcmV0c2VjcmV0c2VjcmV0c2VjcmV0"},
        {**public_jwk("of another curve", "ES256"), "crv": "secp256k1"},
        public_jwk("too short", "RS256", bits=1024),
        {**public_jwk("of everybody", "ES256"), "d": "c2VjcmV0"},
        good,
    ]
    assert (await known.read()).keys() == {"good"}


async def test_many_who_come_at_once_to_an_empty_cache_ask_once(provider: IdentityProvider, known: SigningKeys) -> None:
    provider.is_open.clear()
    asking = [asyncio.create_task(is_found(known, "first")) for _ in range(100)]
    await eventually(lambda: provider.asked)
    provider.is_open.set()
    assert all(await asyncio.gather(*asking))
    assert provider.asked == [DISCOVERY, KEYS]


async def test_tokens_of_unknown_keys_cannot_make_the_provider_be_asked_more_than_once_in_a_while(
    provider: IdentityProvider, known: SigningKeys, clock: Clock
) -> None:
    assert await is_found(known, "first")
    for round_ in range(3):
        assert not any(await asyncio.gather(*(is_found(known, f"made up {n}") for n in range(50))))
        assert provider.asked.count(KEYS) == 1 + round_
        clock.now += PAUSE_SECONDS - 0.01
        assert not await is_found(known, "made up")
        assert provider.asked.count(KEYS) == 1 + round_
        clock.now += 0.01
    assert await is_found(known, "first")


async def test_a_rotation_is_followed(provider: IdentityProvider, known: SigningKeys, clock: Clock) -> None:
    assert await is_found(known, "first")
    provider.keys.append(public_jwk("second", "ES256"))
    clock.now += PAUSE_SECONDS
    assert await is_found(known, "second")
    assert await is_found(known, "first")
    provider.keys.pop(0)
    clock.now += LIFETIME_SECONDS
    assert not await is_found(known, "first")
    assert await is_found(known, "second")


async def test_keys_in_use_are_read_again_ahead_of_time_and_nobody_waits(
    provider: IdentityProvider, known: SigningKeys, clock: Clock
) -> None:
    assert await is_found(known, "first")
    clock.now += LIFETIME_SECONDS / 2
    provider.is_open.clear()
    async with asyncio.timeout(PATIENCE):
        assert await is_found(known, "first")
    await eventually(lambda: len(provider.asked) == 3)
    provider.keys = [public_jwk("second", "RS256", 2)]
    provider.is_open.set()
    await eventually(lambda: "second" in known._keys)


async def test_an_outage_leaves_the_keys_that_are_known(
    provider: IdentityProvider, known: SigningKeys, clock: Clock
) -> None:
    assert await is_found(known, "first")
    provider.stop()
    clock.now += LIFETIME_SECONDS
    assert await is_found(known, "first")
    clock.now += PAUSE_SECONDS
    with pytest.raises(IdentityProviderUnavailable):  # it may well be one of the provider's
        await known.find("second")
    clock.now = KEPT_SECONDS - 1
    assert await is_found(known, "first")
    clock.now = KEPT_SECONDS
    with pytest.raises(IdentityProviderUnavailable):
        await known.find("first")
    provider.start()
    clock.now += PAUSE_SECONDS
    assert await is_found(known, "first")
    assert not await is_found(known, "second")


async def test_in_an_outage_known_keys_are_not_waited_for(
    provider: IdentityProvider, known: SigningKeys, clock: Clock
) -> None:
    assert await is_found(known, "first")
    provider.answers[KEYS] = (500, b"")
    clock.now += LIFETIME_SECONDS
    assert await is_found(known, "first")
    provider.is_open.clear()
    asked = len(provider.asked)
    clock.now += PAUSE_SECONDS
    async with asyncio.timeout(PATIENCE):
        assert await is_found(known, "first")
    await eventually(lambda: len(provider.asked) > asked)
    assert known._reading is not None


async def test_without_keys_an_outage_is_told_at_once_and_asked_about_once_in_a_while(
    provider: IdentityProvider, known: SigningKeys, clock: Clock
) -> None:
    provider.answers[DISCOVERY] = (503, b"")
    for _ in range(20):
        with pytest.raises(IdentityProviderUnavailable):
            await known.find("first")
    assert provider.asked == [DISCOVERY]
    del provider.answers[DISCOVERY]
    clock.now += PAUSE_SECONDS
    assert await is_found(known, "first")


async def test_a_provider_that_does_not_answer_is_given_up(
    provider: IdentityProvider, known: SigningKeys, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(signing_keys, "READ_SECONDS", 0.05)
    provider.is_open.clear()
    with pytest.raises(IdentityProviderUnavailable, match="did not answer within"):
        await known.read()


async def test_a_provider_that_takes_its_keys_back_has_none(
    provider: IdentityProvider, known: SigningKeys, clock: Clock
) -> None:
    assert await is_found(known, "first")
    provider.keys = []
    clock.now += LIFETIME_SECONDS
    assert not await is_found(known, "first")


NONSENSE: list[tuple[str, int, Any]] = [
    (DISCOVERY, 404, b""),
    (DISCOVERY, 302, KEYS.encode()),
    (DISCOVERY, 200, b"<html>"),
    (DISCOVERY, 200, []),
    (DISCOVERY, 200, {"issuer": "https://another.example", "jwks_uri": "https://another.example/keys"}),
    (DISCOVERY, 200, {}),
    (KEYS, 500, b""),
    (KEYS, 200, b"[" * 100_000),
    (KEYS, 200, b" " * (signing_keys.LARGEST_ANSWER + 1)),
    (KEYS, 200, {"keys": 7}),
    (KEYS, 200, {"keys": [7]}),
    (KEYS, 200, None),
]


@pytest.mark.parametrize(("path", "status", "told"), NONSENSE)
async def test_nonsense_from_a_provider_is_as_good_as_an_outage(
    provider: IdentityProvider, known: SigningKeys, clock: Clock, path: str, status: int, told: Any
) -> None:
    assert await is_found(known, "first")
    provider.answers[path] = (status, told if isinstance(told, bytes) else json.dumps(told).encode())
    with pytest.raises(IdentityProviderUnavailable, match=provider.issuer):
        await known.read()
    clock.now += LIFETIME_SECONDS
    assert await is_found(known, "first")


@pytest.mark.parametrize("url", ["http://keys.example/keys", "ftp://127.0.0.1/keys", "keys", "https://"])
async def test_keys_are_read_only_where_nobody_can_change_them_on_the_way(
    provider: IdentityProvider, known: SigningKeys, url: str
) -> None:
    document = {"issuer": provider.issuer, "jwks_uri": url}
    provider.answers[DISCOVERY] = (200, json.dumps(document).encode())
    with pytest.raises(IdentityProviderUnavailable, match="not read without https"):
        await known.read()


async def test_where_the_keys_are_can_be_told(provider: IdentityProvider, clock: Clock) -> None:
    known = SigningKeys("https://issuer.example/", jwks_url=provider.issuer + KEYS, clock=clock)
    assert await is_found(known, "first")
    assert provider.asked == [KEYS]
    await known.aclose()


async def test_what_goes_on_ends_with_the_process(provider: IdentityProvider, clock: Clock) -> None:
    known = SigningKeys(provider.issuer, clock=clock)
    provider.is_open.clear()
    asking = asyncio.create_task(known.find("first"))
    await eventually(lambda: provider.asked)
    await known.aclose()
    with pytest.raises(asyncio.CancelledError):
        await asking
