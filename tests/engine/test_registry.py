"""Handlers by type: what their signatures say of payloads, and which definitions are refused."""

from __future__ import annotations

import functools
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from datetime import datetime
from typing import Annotated, Any

import pytest
from pydantic import BaseModel, Field

from taketurns.engine import limits
from taketurns.engine.errors import ConfigurationError, InvalidPayload, UnknownType
from taketurns.engine.registry import Registry, check_options


class Context:
    """Stands for the context of an attempt."""


class Address(BaseModel):
    street: str
    number: int


async def send(context: Context, to: Address, *, subject: str = "hello", at: datetime | None = None) -> None:
    """A handler with all that a signature may have."""


def count(number: int) -> int:
    return number


@pytest.fixture
def registry() -> Registry:
    return Registry()


def test_a_handler_is_known_by_its_functions_name_or_another(registry: Registry) -> None:
    assert registry.add(count).name == "count"
    assert registry.add(count, name="other").name == "other"
    assert registry.names == ["count", "other"]
    assert "count" in registry
    assert len(registry) == len(list(registry)) == 2


def test_a_name_is_given_once(registry: Registry) -> None:
    registry.add(count)
    with pytest.raises(ConfigurationError, match="twice"):
        registry.add(send, name="count")
    assert registry.get("count").handler is count


def test_an_unknown_type_is_told_with_the_known_ones(registry: Registry) -> None:
    registry.add(count)
    registry.add(send, context_type=Context)
    with pytest.raises(UnknownType, match="count, send") as raised:
        registry.get("cuont")
    assert raised.value.known == ("count", "send")


def test_a_known_type_is_told_once() -> None:
    assert str(UnknownType("cuont", ["send", "count", "send"])).endswith("known types: count, send")


def test_a_payload_becomes_the_handlers_arguments(registry: Registry) -> None:
    task_type = registry.add(send, context_type=Context)
    assert task_type.context_parameter == "context"
    assert task_type.is_async
    arguments = task_type.validate({"to": {"street": "High", "number": 7}, "at": "2030-01-01T12:00:00Z"})
    assert arguments["to"] == Address(street="High", number=7)
    assert arguments["subject"] == "hello"
    assert isinstance(arguments["at"], datetime)
    assert "context" not in arguments


@pytest.mark.parametrize(
    ("payload", "place"),
    [
        ({}, ("to",)),
        ({"to": {"street": "High"}}, ("to", "number")),
        ({"to": {"street": "High", "number": 7}, "subjcet": "typo"}, ("subjcet",)),
        ({"to": {"street": "High", "number": 7}, "context": {}}, ("context",)),
    ],
)
def test_a_payload_that_does_not_fit_is_refused_by_field(
    registry: Registry, payload: dict[str, Any], place: tuple[str, ...]
) -> None:
    task_type = registry.add(send, context_type=Context)
    with pytest.raises(InvalidPayload) as raised:
        task_type.validate(payload)
    assert [error["loc"] for error in raised.value.errors] == [place]


def bounded(words: Annotated[int, Field(max_length=3)]) -> None:
    """To ask for a number's length raises what is no ValidationError."""


def test_a_check_that_breaks_refuses_the_payload(registry: Registry) -> None:
    with pytest.raises(InvalidPayload, match="TypeError"):
        registry.add(bounded).validate({"words": 1})


def test_the_schema_names_each_field(registry: Registry) -> None:
    schema = registry.add(send, context_type=Context).payload_schema
    assert set(schema["properties"]) == {"to", "subject", "at"}
    assert schema["required"] == ["to"]
    assert schema["additionalProperties"] is False


def only_by_position(number: int, /) -> None:
    """Cannot be filled from a JSON object."""


def as_many_as_come(*numbers: int) -> None:
    """Cannot be filled from a JSON object."""


def whatever_comes(**options: int) -> None:
    """Cannot be filled from a JSON object."""


@pytest.mark.parametrize("handler", [only_by_position, as_many_as_come, whatever_comes])
def test_parameters_that_no_object_can_fill_are_refused(registry: Registry, handler: Callable[..., None]) -> None:
    with pytest.raises(ConfigurationError, match="cannot be filled"):
        registry.add(handler)
    assert len(registry) == 0


def locked(number: int, lock: threading.Lock) -> None:
    """No JSON is a lock."""


def called_back(number: int, call: Callable[[], int]) -> None:
    """No JSON Schema tells of a function."""


@pytest.mark.parametrize(("handler", "parameter"), [(locked, "lock"), (called_back, "call")])
def test_a_parameter_that_no_json_can_fill_is_refused_and_named(
    registry: Registry, handler: Callable[..., None], parameter: str
) -> None:
    with pytest.raises(ConfigurationError, match=rf"'{handler.__name__}': parameter '{parameter}'"):
        registry.add(handler)
    assert len(registry) == 0


def unreadable(number: Nowhere) -> None:  # type: ignore[name-defined]  # noqa: F821
    """Its annotation names nothing."""


def test_annotations_that_name_nothing_are_refused(registry: Registry) -> None:
    with pytest.raises(ConfigurationError, match=r"'unreadable'.*'Nowhere' is not defined"):
        registry.add(unreadable)


PARAMETER_NAMES = [*(name for name in dir(BaseModel) if not name.startswith("__")), "_unused", "__unused", "self"]


@pytest.mark.parametrize("name", PARAMETER_NAMES)
def test_a_parameter_of_any_name_gets_its_value_or_is_refused(registry: Registry, name: str) -> None:
    namespace: dict[str, Any] = {}
    exec(f"def handler({name}: int) -> None: ...", namespace)  # noqa: S102
    try:
        task_type = registry.add(namespace["handler"])
    except ConfigurationError as error:
        assert repr(name) in str(error)  # noqa: PT017
        assert name.startswith(("_", "model_"))
    else:
        assert task_type.validate({name: 7}) == {name: 7}


def yields() -> Iterator[int]:
    yield 1


async def yields_in_turn() -> AsyncIterator[int]:
    yield 1


class Sender:
    def __call__(self, number: int) -> None:
        """What is registered is a function."""


@pytest.mark.parametrize("handler", [yields, yields_in_turn, Sender, Sender(), functools.partial(count, 1), 3])
def test_what_is_no_function_that_returns_is_no_handler(registry: Registry, handler: Any) -> None:
    with pytest.raises(ConfigurationError, match="cannot be a handler"):
        registry.add(handler, name="work")
    assert len(registry) == 0


@pytest.mark.parametrize(
    "options",
    [
        {"name": "1st"},
        {"name": ""},
        {"name": 3},
        {"queue": 3},
        {"timeout_seconds": "30"},
        {"timeout_seconds": True},
        {"backoff": 3},
        {"name": "a" * (limits.TYPE_LENGTH + 1)},
        {"name": "with space"},
        {"queue": ""},
        {"queue": "a/b"},
        {"queue": "a" * (limits.QUEUE_LENGTH + 1)},
        {"priority": -1},
        {"priority": 10},
        {"max_retries": -1},
        {"max_retries": limits.MAX_RETRIES_MAX + 1},
        {"timeout_seconds": 0},
        {"timeout_seconds": float("nan")},
        {"timeout_seconds": float("inf")},
        {"priority": "high"},
        {"max_retries": 2.5},
    ],
)
def test_options_out_of_bounds_are_refused_and_named(registry: Registry, options: dict[str, Any]) -> None:
    (name,) = options
    with pytest.raises(ConfigurationError, match="type" if name == "name" else name):
        registry.add(count, **options)
    assert len(registry) == 0


def test_options_at_their_bounds_are_taken() -> None:
    for options in (
        {"type": "a" * limits.TYPE_LENGTH, "queue": "q" * limits.QUEUE_LENGTH},
        {"priority": 0, "max_retries": 0, "timeout_seconds": 0.001, "delay_seconds": 0},
        {
            "priority": 9,
            "max_retries": limits.MAX_RETRIES_MAX,
            "timeout_seconds": limits.TIMEOUT_SECONDS_MAX,
            "delay_seconds": limits.DELAY_SECONDS_MAX,
        },
    ):
        assert list(check_options(**options)) == []


def test_every_option_out_of_bounds_is_named() -> None:
    complaints = check_options(type="", queue="", priority=-1, max_retries=-1, timeout_seconds=-1, delay_seconds=-1)
    assert [name for name, _ in complaints] == [
        "type",
        "queue",
        "priority",
        "max_retries",
        "timeout_seconds",
        "delay_seconds",
    ]
