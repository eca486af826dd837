"""The handlers of an application, by type, and the payloads that fit them."""

from __future__ import annotations

import inspect
import re
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, get_type_hints

from pydantic import BaseModel, ConfigDict, ValidationError, create_model

from taketurns.engine import limits
from taketurns.engine.errors import ConfigurationError, InvalidPayload, UnknownType
from taketurns.engine.retry import Backoff, is_number
from taketurns.engine.task import Unique

TYPE_NAME: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_.:-]*")
TAG: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.:/=@-]*")
QUEUE_NAME: Final = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.:-]*")


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskType:
    """A handler and the options that its tasks have unless they are created with others."""

    name: str
    handler: Callable[..., Any]
    queue: str = "default"
    priority: int = limits.PRIORITY_DEFAULT
    max_retries: int = limits.MAX_RETRIES_DEFAULT
    timeout_seconds: float | None = None
    backoff: Backoff = field(default_factory=Backoff)
    payload_model: type[BaseModel]
    context_parameter: str | None
    is_async: bool

    def validate(self, payload: Mapping[str, Any]) -> dict[str, Any]:
        """The arguments for the handler. Raises InvalidPayload, which names each wrong field."""
        try:
            model = self.payload_model.model_validate(payload)
        except ValidationError as error:
            raise InvalidPayload(self.name, error.errors(include_url=False, include_input=False)) from error
        except Exception as error:  # a validator of the application's own may raise anything
            told = f"cannot be checked: a validator of the handler's raised {type(error).__name__}"
            raise InvalidPayload(self.name, [{"loc": (), "msg": told, "type": "validator_failed"}]) from error
        return model.__dict__

    @property
    def payload_schema(self) -> dict[str, Any]:
        """The JSON Schema of the payload."""
        return self.payload_model.model_json_schema()


class Registry:
    """The types that an application knows."""

    def __init__(self) -> None:
        self._types: dict[str, TaskType] = {}

    def add(
        self,
        handler: Callable[..., Any],
        *,
        name: str | None = None,
        context_type: type | None = None,
        **options: Any,
    ) -> TaskType:
        """Register a handler under its function's name, or another.

        A parameter annotated with `context_type` is not part of the payload: it is given the context of the attempt.
        Raises ConfigurationError when the name is taken, an option is out of bounds, or the function can be no handler.
        """
        if (
            not inspect.isroutine(handler)
            or inspect.isgeneratorfunction(handler)
            or inspect.isasyncgenfunction(handler)
        ):
            raise ConfigurationError(f"{handler!r} cannot be a handler: that is a function that returns, async or not")
        name = handler.__name__ if name is None else name
        if name in self._types:
            raise ConfigurationError(f"type {name!r} is registered twice: give one of the handlers another name")
        payload_model, context_parameter = payload_model_of(handler, name=name, context_type=context_type)
        task_type = TaskType(
            name=name,
            handler=handler,
            payload_model=payload_model,
            context_parameter=context_parameter,
            is_async=inspect.iscoroutinefunction(handler),
            **options,
        )
        _check(task_type)
        self._types[name] = task_type
        return task_type

    def get(self, name: str) -> TaskType:
        """Raises UnknownType, which names the known ones."""
        try:
            return self._types[name]
        except KeyError:
            raise UnknownType(name, list(self._types)) from None

    def __contains__(self, name: object) -> bool:
        return name in self._types

    def __iter__(self) -> Iterator[TaskType]:
        return iter(self._types.values())

    def __len__(self) -> int:
        return len(self._types)

    @property
    def names(self) -> list[str]:
        return sorted(self._types)


def payload_model_of(
    handler: Callable[..., Any], *, name: str, context_type: type | None
) -> tuple[type[BaseModel], str | None]:
    """A strict model of the handler's parameters, and the name of the one that takes the context.

    Unknown fields are refused. Raises ConfigurationError for parameters that a JSON object cannot fill.
    """
    try:
        hints = get_type_hints(handler, include_extras=True)
    except Exception as error:
        raise ConfigurationError(f"type {name!r}: the handler's annotations cannot be read: {error}") from error
    fields: dict[str, Any] = {}
    context_parameter: str | None = None
    for parameter in inspect.signature(handler).parameters.values():
        if parameter.kind not in (parameter.POSITIONAL_OR_KEYWORD, parameter.KEYWORD_ONLY):
            raise ConfigurationError(f"type {name!r}: parameter {parameter} cannot be filled from a JSON object")
        hint = hints.get(parameter.name, Any)
        if context_type is not None and hint is context_type:
            context_parameter = parameter.name
            continue
        if parameter.name.startswith("_") or (
            parameter.name.startswith("model_") and hasattr(BaseModel, parameter.name)
        ):
            raise ConfigurationError(
                f"type {name!r}: a parameter cannot be called {parameter.name!r}: give it another name"
            )
        default = ... if parameter.default is parameter.empty else parameter.default
        fields[parameter.name] = (hint, default)
    try:
        return _model(name, fields), context_parameter
    except Exception as error:
        parameter_name, reason = _misfit(name, fields) or ("", error)
        of_parameter = (
            f"parameter {parameter_name!r} cannot be filled from JSON" if parameter_name else "the parameters"
        )
        raise ConfigurationError(f"type {name!r}: {of_parameter}: {_first_line(reason)}") from error


def _model(name: str, fields: Mapping[str, Any]) -> type[BaseModel]:
    """Its JSON Schema is made as well, to see that there is one."""
    with warnings.catch_warnings(action="ignore", category=UserWarning):  # json, copy … are names like any other here
        model = create_model(
            f"{name} payload", __config__=ConfigDict(extra="forbid", arbitrary_types_allowed=False), **fields
        )
        model.model_json_schema()
    return model


def _misfit(name: str, fields: Mapping[str, Any]) -> tuple[str, Exception] | None:
    """The first parameter of which no model can be made, and why not."""
    for parameter, field_of in fields.items():
        try:
            _model(name, {parameter: field_of})
        except Exception as error:
            return parameter, error
    return None


def _first_line(error: Exception) -> str:
    return str(error).partition("\n")[0]


def _check(task_type: TaskType) -> None:
    options = check_options(
        type=task_type.name,
        queue=task_type.queue,
        priority=task_type.priority,
        max_retries=task_type.max_retries,
        timeout_seconds=task_type.timeout_seconds,
    )
    for name, complaint in options:
        raise ConfigurationError(f"type {task_type.name!r}: {name} {complaint}")
    if not isinstance(task_type.backoff, Backoff):
        raise ConfigurationError(f"type {task_type.name!r}: backoff must be a Backoff, not {task_type.backoff!r}")


def check_options(
    *,
    type: str | None = None,
    queue: str | None = None,
    priority: int | None = None,
    max_retries: int | None = None,
    timeout_seconds: float | None = None,
    delay_seconds: float | None = None,
) -> Iterator[tuple[str, str]]:
    """What is out of bounds: the option's name and what to do, for each."""
    if type is not None and not _is_name(type, TYPE_NAME, limits.TYPE_LENGTH):
        yield (
            "type",
            f"must be 1 to {limits.TYPE_LENGTH} letters, digits or _ . : - and not begin with a digit",
        )
    if queue is not None and not _is_name(queue, QUEUE_NAME, limits.QUEUE_LENGTH):
        yield "queue", f"must be 1 to {limits.QUEUE_LENGTH} letters, digits or _ . : -"
    if priority is not None and not (_is_whole(priority) and limits.PRIORITY_FIRST <= priority <= limits.PRIORITY_LAST):
        yield (
            "priority",
            f"must be a whole number from {limits.PRIORITY_FIRST} (first) to {limits.PRIORITY_LAST} (last)",
        )
    if max_retries is not None and not (_is_whole(max_retries) and 0 <= max_retries <= limits.MAX_RETRIES_MAX):
        yield "max_retries", f"must be a number from 0 to {limits.MAX_RETRIES_MAX}"
    if timeout_seconds is not None and not (
        is_number(timeout_seconds) and 0 < timeout_seconds <= limits.TIMEOUT_SECONDS_MAX
    ):
        yield "timeout_seconds", f"must be above 0 and at most {limits.TIMEOUT_SECONDS_MAX:g}"
    if delay_seconds is not None and not (is_number(delay_seconds) and 0 <= delay_seconds <= limits.DELAY_SECONDS_MAX):
        yield "delay_seconds", f"must be from 0 to {limits.DELAY_SECONDS_MAX:g}"


def check_marks(*, tags: Sequence[str], unique: Unique | None) -> Iterator[tuple[str, str]]:
    """The same of what tells a task apart from others."""
    if not all(_is_name(tag, TAG, limits.TAG_LENGTH) for tag in tags):
        yield (
            "tags",
            f"must each be 1 to {limits.TAG_LENGTH} letters, digits or _ . : / = @ - and begin with a letter or digit",
        )
    elif len(tags) > limits.TAGS_MAX or len(set(tags)) < len(tags):
        yield "tags", f"must be at most {limits.TAGS_MAX}, each of them once"
    if unique is not None and not is_key(unique.key, limits.UNIQUE_KEY_LENGTH):
        yield "unique_key", f"must be 1 to {limits.UNIQUE_KEY_LENGTH} printable characters, and not blank"
    if (
        unique is not None
        and unique.seconds is not None
        and not (is_number(unique.seconds) and 0 < unique.seconds <= limits.UNIQUE_SECONDS_MAX)
    ):
        yield "unique_for", f"must be above 0 and at most {limits.UNIQUE_SECONDS_MAX:g}"


def is_key(text: object, most: int) -> bool:
    """Whether this may be an idempotency key or a unique key."""
    return isinstance(text, str) and len(text) <= most and text.isprintable() and not text.isspace() and text != ""


def _is_name(text: object, pattern: re.Pattern[str], most: int) -> bool:
    return isinstance(text, str) and len(text) <= most and pattern.fullmatch(text) is not None


def _is_whole(number: object) -> bool:
    """PostgreSQL has no way from a boolean or a fraction to a small number, and Python takes both for one."""
    return isinstance(number, int) and not isinstance(number, bool)
