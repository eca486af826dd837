"""The form of keys: read as they were made, and refused with any slip."""

from __future__ import annotations

import re
import string
from uuid import UUID

from hypothesis import given
from hypothesis import strategies as some

from taketurns.engine import key
from taketurns.engine.key import GRANTS, WILDCARDS, Role, Scope

ENVIRONMENTS = some.from_regex(key.ENVIRONMENT, fullmatch=True)
LETTERS = string.ascii_letters + string.digits + "_"


@given(environment=ENVIRONMENTS, key_id=some.uuids())
def test_a_key_is_read_as_it_was_made(environment: str, key_id: UUID) -> None:
    made = key.make(environment, key_id)
    assert key.read(made.text.encode()) == made
    assert (made.id, made.environment) == (key_id, environment)
    assert made.text.startswith(f"{key.prefix(environment, key_id)}_")
    assert re.fullmatch(r"tt_[a-z0-9]{1,16}_[0-9A-Za-z]{22}_[0-9A-Za-z]{49}", made.text)
    assert made.text.endswith(made.last_four)
    assert made.text not in repr(made)


@given(key_id=some.uuids(), position=some.integers(min_value=0), other=some.sampled_from(LETTERS))
def test_one_wrong_letter_is_noticed(key_id: UUID, position: int, other: str) -> None:
    text = key.make("live", key_id).text
    at = position % len(text)
    wrong = text[:at] + other + text[at + 1 :]
    assert (key.read(wrong.encode()) is None) == (wrong != text)


@given(key_id=some.uuids(), position=some.integers(min_value=0))
def test_two_letters_that_change_places_are_noticed(key_id: UUID, position: int) -> None:
    text = key.make("live", key_id).text
    at = position % (len(text) - 1)
    wrong = text[:at] + text[at + 1] + text[at] + text[at + 2 :]
    assert (key.read(wrong.encode()) is None) == (wrong != text)


@given(text=some.binary(max_size=200))
def test_what_is_no_key_is_read_as_none(text: bytes) -> None:
    assert key.read(text) is None


def test_an_id_that_is_too_large_is_none() -> None:
    body = f"tt_live_{'z' * 22}_{'0' * 43}"
    assert key.read((body + key._checksum(body.encode())).encode()) is None


def test_no_two_keys_have_a_secret_or_a_digest_in_common() -> None:
    same_id = UUID(int=7)
    made = [key.make("live", same_id) for _ in range(100)]
    assert len({one.text.split("_")[3] for one in made}) == 100
    assert len({one.digest(b"pepper") for one in made}) == 100
    assert made[0].digest(b"pepper") != made[0].digest(b"salt")


@given(key_id=some.uuids())
def test_a_key_is_found_by_its_id_its_beginning_and_itself(key_id: UUID) -> None:
    text = key.make("live", key_id).text
    for named in (str(key_id), text, text[:30], text[:31], text[:50]):
        assert key.id_of(named) == key_id
    assert key.id_of("acme") is None
    assert key.id_of(f"tt_live_{'z' * 22}") is None
    assert key.without_secret(text) == text[:30]


def test_wildcards_grant_both_scopes_and_unknown_names_none() -> None:
    assert key.granted(["jobs:*", "usage:read", "root"]) == {Scope.JOBS_READ, Scope.JOBS_WRITE, Scope.USAGE_READ}
    assert key.granted(GRANTS) == set(Scope)
    assert key.granted(WILDCARDS) == {scope for scope in Scope if scope.split(":")[0] in {"jobs", "schedules"}}


def test_a_role_includes_those_before_it() -> None:
    assert [[one.includes(other) for other in Role] for one in Role] == [
        [True, False, False],
        [True, True, False],
        [True, True, True],
    ]
