"""A fingerprint stands for what a request asks for, not for how it is written."""

import json
from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from taketurns.engine.fingerprint import fingerprint

values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=10,
)
payloads = st.dictionaries(st.text(), values, max_size=5)


def reordered(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: reordered(inner) for key, inner in reversed(value.items())}
    return [reordered(inner) for inner in value] if isinstance(value, list) else value


@given(payloads)
def test_the_order_of_keys_and_white_space_do_not_count(payload: dict[str, Any]) -> None:  # fault 028
    same = json.loads(json.dumps(reordered(payload), indent=3))
    assert fingerprint(type="work", payload=payload) == fingerprint(type="work", payload=same)


@given(payloads, payloads)
def test_other_payloads_have_other_fingerprints(one: dict[str, Any], other: dict[str, Any]) -> None:
    same_text = json.dumps(one, sort_keys=True) == json.dumps(other, sort_keys=True)
    assert (fingerprint(type="work", payload=one) == fingerprint(type="work", payload=other)) is same_text


def test_the_order_of_a_list_counts() -> None:
    assert fingerprint(type="work", payload={"a": [1, 2]}) != fingerprint(type="work", payload={"a": [2, 1]})


@pytest.mark.parametrize(
    "option",
    [
        {"queue": "default"},
        {"priority": 5},
        {"run_after": datetime(2030, 1, 1, tzinfo=UTC)},
        {"delay_seconds": 0},
        {"max_retries": 5},
        {"timeout_seconds": 30},
    ],
)
def test_an_option_that_was_given_counts(option: dict[str, Any]) -> None:
    assert fingerprint(type="work", payload={}, **option) != fingerprint(type="work", payload={})


def test_one_moment_in_two_time_zones_is_the_same() -> None:
    moment = datetime(2030, 1, 1, 12, tzinfo=UTC)
    abroad = moment.astimezone(timezone(timedelta(hours=5)))
    assert fingerprint(type="work", payload={}, run_after=moment) == fingerprint(
        type="work", payload={}, run_after=abroad
    )


def test_whole_seconds_are_the_same_with_and_without_a_point() -> None:
    assert fingerprint(type="work", payload={}, delay_seconds=30) == fingerprint(
        type="work", payload={}, delay_seconds=30.0
    )
