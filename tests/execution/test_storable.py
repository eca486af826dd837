"""What handlers return and raise becomes text that PostgreSQL takes, or is refused readably: fault 091."""

import datetime
import json
import math
import uuid
from dataclasses import dataclass
from typing import Any

import psycopg
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel

from taketurns.engine import limits
from taketurns.execution import storable


class Invoice(BaseModel):
    number: int


@dataclass
class Line:
    amount: float


class Mute(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no words")


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text("abc\\u0"),
    lambda inner: st.lists(inner) | st.dictionaries(st.text("abc\\u0"), inner),
)


@given(JSON)
def test_any_json_comes_back_as_it_was(value: Any) -> None:
    text = storable.result_text(value)
    assert (json.loads(text) if text is not None else None) == value


def test_no_result_is_no_text() -> None:
    assert storable.result_text(None) is None


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (Invoice(number=7), '{"number":7}'),
        ([Line(0.5)], '[{"amount":0.5}]'),
        (uuid.UUID(int=1), '"00000000-0000-0000-0000-000000000001"'),
        (datetime.date(2026, 12, 1), '"2026-12-01"'),
        (2**80, str(2**80)),
        ("NaN and Infinity", '"NaN and Infinity"'),
        ("a\\u0000b", '"a\\\\u0000b"'),
    ],
)
def test_values_have_the_json_that_pydantic_gives_them(value: object, text: str) -> None:
    assert storable.result_text(value) == text


def nested(depth: int) -> list[Any]:
    value: list[Any] = []
    for _ in range(depth):
        value = [value]
    return value


CYCLE: list[Any] = []
CYCLE.append(CYCLE)


UNSTORABLE: dict[str, tuple[object, str]] = {
    "a NUL in a text": ({"out": "a\x00b"}, "NUL"),
    "a NUL in a key": ({"a\x00": 1}, "NUL"),
    "a NUL behind a backslash": (["\\\x00"], "NUL"),
    "half a surrogate pair": ("\ud800", "not JSON"),
    "half a pair in a key": ({"\udfff": 1}, "not JSON"),
    "not a number": (math.nan, "NaN"),
    "infinity": ([math.inf], "infinite"),
    "minus infinity": ({"deep": [-math.inf]}, "infinite"),
    "an object": (object(), "unknown type"),
    "a deep list": (nested(5_000), "depth"),
    "a list as deep as none is read": (nested(250), "could not be read again"),
    "a number with more digits than are read": ({"total": 10**4_300}, "could not be read again"),
    "a cycle": (CYCLE, "Circular"),
    "bytes that are no text": (b"\xff", "utf-8"),
    "a long text": ("x" * limits.RESULT_BYTES, f"{limits.RESULT_BYTES} are kept at most"),
}


@pytest.mark.parametrize("name", UNSTORABLE)
def test_what_cannot_be_stored_is_refused_with_the_reason(name: str) -> None:
    value, complaint = UNSTORABLE[name]
    with pytest.raises(storable.Unstorable, match=complaint):
        storable.result_text(value)


def raised(error: BaseException) -> BaseException:
    try:
        raise error
    except BaseException as caught:
        return caught


def test_an_errors_text_begins_with_what_it_says_and_tells_where() -> None:
    text = storable.error_text(raised(ValueError("no such invoice")))
    assert text.startswith("ValueError: no such invoice\n")
    assert "test_storable.py" in text
    assert "raise error" in text


def test_an_errors_cause_is_told() -> None:
    error = RuntimeError("could not send")
    error.__cause__ = ConnectionRefusedError("port 25")
    assert "caused by ConnectionRefusedError: port 25" in storable.error_text(raised(error))


def test_an_error_whose_message_cannot_be_had_is_told_all_the_same() -> None:
    assert storable.message(Mute()) == "Mute: (its message cannot be shown: RuntimeError)"


@given(st.text())
def test_clean_text_can_be_encoded_and_is_short(text: str) -> None:
    cleaned = storable.clean(text)
    assert "\x00" not in cleaned.encode().decode()
    assert len(cleaned) <= limits.ERROR_LENGTH
    if "\x00" not in text:
        assert cleaned == text[: limits.ERROR_LENGTH]


def test_lone_surrogates_stay_readable() -> None:
    assert storable.clean("a\ud800b") == "a\\ud800b"


@pytest.mark.parametrize("message", ["a\x00b", "\ud800", "x" * 1_000_000])
def test_postgresql_takes_every_error(database_url: str, message: str) -> None:
    with psycopg.connect(database_url) as connection:
        text = storable.error_text(raised(ValueError(message)))
        assert connection.execute("select %s::text", [text]).fetchone() == (text,)
