"""What claims make of a token's bearer, and which addresses can be trusted with keys."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as some

from taketurns.engine import addresses, token
from taketurns.engine.key import GRANTS, Role, granted
from taketurns.engine.token import ClaimNames, CompanyBearer, OperatorBearer

NAMES = ClaimNames(company="org.id", scope="https://tasks.example/scope", role="realm_access.roles")
JSON = some.recursive(
    some.none() | some.booleans() | some.integers() | some.floats() | some.text(),
    lambda inner: some.lists(inner, max_size=3) | some.dictionaries(some.text(), inner, max_size=3),
    max_leaves=10,
)
WORDS = some.sampled_from([*GRANTS, *Role, "openid", "Admin", "", "tasks", "*"])


@given(
    claims=some.fixed_dictionaries(
        {}, optional={"sub": JSON, "company": JSON, "scope": JSON, "role": JSON, "org": JSON, "realm_access": JSON}
    ),
    names=some.sampled_from([ClaimNames(), ClaimNames(role="role"), NAMES]),
)
def test_whatever_claims_there_are_they_make_somebody_or_nobody(claims: dict[str, Any], names: ClaimNames) -> None:
    found = token.bearer(claims, names)
    if found is not None:
        assert found.subject == claims["sub"]
        assert isinstance(found, CompanyBearer) or names.role is not None


@given(words=some.lists(WORDS), company=some.text(), is_text=some.booleans())
def test_a_token_with_a_company_has_the_scopes_that_a_key_with_these_words_has(
    words: list[str], company: str, is_text: bool
) -> None:
    scope = " ".join(words) if is_text else words
    claims = {"sub": "ada", "org": {"id": company}, NAMES.scope: scope, "realm_access": {"roles": words}}
    assert token.bearer(claims, NAMES) == CompanyBearer("ada", company, granted(words))


@given(words=some.lists(WORDS))
def test_of_several_roles_the_greatest_counts(words: list[str]) -> None:
    found = token.bearer({"sub": "ada", "realm_access": {"roles": words}}, NAMES)
    roles = [Role(word) for word in words if word in set(Role)]
    assert (found is None) == (roles == [])
    if isinstance(found, OperatorBearer):
        assert found.role in roles
        assert all(found.role.includes(role) for role in roles)


@given(
    company=some.integers() | some.booleans() | some.lists(some.text()) | some.dictionaries(some.text(), some.text())
)
def test_a_company_that_is_no_text_makes_nobody_and_least_of_all_an_operator(company: object) -> None:
    assert token.bearer({"sub": "ada", "company": company, "role": "admin"}, ClaimNames(role="role")) is None


def test_no_token_is_an_operator_s_unless_a_claim_for_that_is_named() -> None:
    assert token.bearer({"sub": "ada", "role": "admin", "None": "admin"}, ClaimNames()) is None


def test_a_claim_s_name_in_full_goes_before_a_path() -> None:
    claims = {"sub": "ada", "org.id": "acme", "org": {"id": "globex"}}
    assert token.bearer(claims, NAMES) == CompanyBearer("ada", "acme", frozenset())


@pytest.mark.parametrize(
    ("url", "is_trustworthy"),
    [
        ("https://id.example", True),
        ("https://id.example:8443/realms/shop", True),
        ("https://127.0.0.1", True),
        ("http://127.0.0.1:8080", True),
        ("http://localhost/realms/shop", True),
        ("http://[::1]:8080", True),
        ("http://id.example", False),
        ("http://127.0.0.1.id.example", False),
        ("http://localhost.id.example", False),
        ("http://127.0.0.1@id.example", False),
        ("ftp://127.0.0.1", False),
        ("https://", False),
        ("https://[", False),
        ("https://id.example:port", False),
        ("id.example", False),
        ("", False),
    ],
)
def test_keys_are_trusted_from_https_and_this_machine(url: str, is_trustworthy: bool) -> None:
    assert addresses.is_trustworthy(url) == is_trustworthy


@given(url=some.text())
def test_any_text_is_trusted_or_not(url: str) -> None:
    assert addresses.is_trustworthy(url) in {True, False}


@pytest.mark.parametrize(
    ("reached", "named", "is_ours"),
    [
        ("127.0.0.1", "127.0.0.1:8000", True),
        ("127.0.0.1", "localhost:8000", True),
        ("::1", "[::1]:8000", True),
        ("/run/taketurns.sock", "localhost", True),
        ("/run/taketurns.sock", "api", True),
        (None, "api", True),
        ("127.0.0.1", "", True),
        ("127.0.0.1", "evil.example", False),
        ("127.0.0.1", "localhost,evil.example", False),
        ("127.0.0.1", "[::1", False),
        ("192.0.2.7", "localhost", False),
    ],
)
def test_only_this_machine_comes_by_its_own_address_and_name(reached: str | None, named: str, is_ours: bool) -> None:
    assert addresses.comes_from_this_machine(reached=reached, named=named) == is_ours
