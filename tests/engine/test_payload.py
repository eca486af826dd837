"""A payload is refused at the door, by the place that is wrong, when PostgreSQL could not hold it."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from taketurns.engine import limits
from taketurns.engine.errors import InvalidPayload
from taketurns.engine.payload import encode

texts = st.text(alphabet=st.characters(exclude_categories=["Cs"], exclude_characters="\0"))
values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | texts,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(texts, inner, max_size=3),
    max_leaves=10,
)


def nested(levels: int) -> dict[str, Any]:
    payload: dict[str, Any] = {}
    for _ in range(levels - 1):
        payload = {"a": payload}
    return payload


@given(st.dictionaries(texts, values, max_size=5))
def test_what_json_can_say_is_kept_as_it_is(payload: dict[str, Any]) -> None:
    assert json.loads(encode("work", payload)) == payload


@pytest.mark.parametrize(
    ("payload", "path", "words"),
    [
        ({"a": "x\0y"}, ("a",), "U+0000"),  # fault 001
        ({"k\0": 1}, (), "U+0000"),
        ({"l": [{"m": ["\0"]}]}, ("l", 0, "m", 0), "U+0000"),
        ({"a": "\ud83d"}, ("a",), "surrogate"),  # fault 006
        ({"\udc00": {"b": 1}}, (), "surrogate"),
        ({"a": [1.0, float("nan")]}, ("a", 1), "finite"),  # fault 007
        ({"a": float("-inf")}, ("a",), "finite"),
        ({"a": 10**5000}, ("a",), "digits"),
    ],
)
def test_what_postgresql_cannot_hold_is_refused_by_its_place(
    payload: dict[str, Any], path: tuple[str | int, ...], words: str
) -> None:
    with pytest.raises(InvalidPayload, match=words.replace("+", r"\+")) as refusal:
        encode("work", payload)
    assert [error["loc"] for error in refusal.value.errors] == [path]


def test_a_refusal_can_be_printed_whatever_the_payload_holds() -> None:
    with pytest.raises(InvalidPayload) as refusal:
        encode("work", {"\udc00": 1, "\0": "\0"})
    assert str(refusal.value).isprintable()


def test_as_many_levels_as_the_limit_are_taken_and_no_more() -> None:
    assert encode("work", nested(limits.PAYLOAD_DEPTH)).count("{") == limits.PAYLOAD_DEPTH
    with pytest.raises(InvalidPayload, match="64 levels"):
        encode("work", nested(limits.PAYLOAD_DEPTH + 1))
    with pytest.raises(InvalidPayload, match="64 levels"):
        encode("work", nested(100_000))


def test_as_many_bytes_as_the_limit_are_taken_and_no_more() -> None:
    around = len('{"a":""}')
    assert len(encode("work", {"a": "x" * (limits.PAYLOAD_BYTES - around)})) == limits.PAYLOAD_BYTES
    with pytest.raises(InvalidPayload, match="bytes"):
        encode("work", {"a": "x" * (limits.PAYLOAD_BYTES - around + 1)})
    with pytest.raises(InvalidPayload, match="bytes"):
        encode("work", {"a": "é" * (limits.PAYLOAD_BYTES // 2)})
