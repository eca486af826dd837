"""What handlers return and raise, as text that the database takes."""

from __future__ import annotations

import re
import traceback
from types import TracebackType
from typing import Any, Final

import pydantic_core

from taketurns.engine import limits

_NUL: Final = re.compile(rb"(?<!\\)(?:\\\\)*\\u0000")
_FRAMES: Final = 12


class Unstorable(Exception):
    """What the handler returned cannot be stored as its result."""


def result_text(value: object) -> str | None:
    """The JSON of a result, None for None. Raises Unstorable, which says why not.

    pydantic's models, dataclasses, UUIDs, times, sets and bytes of UTF-8 have the JSON that pydantic gives them.
    """
    if value is None:
        return None
    try:
        text = pydantic_core.to_json(value, inf_nan_mode="constants")
    except Exception as error:
        raise Unstorable(f"the result is not JSON: {error}") from error
    if len(text) > limits.RESULT_BYTES:
        raise Unstorable(f"the result has {len(text)} bytes of JSON, and {limits.RESULT_BYTES} are kept at most")
    if b"\\u0000" in text and _NUL.search(text):
        raise Unstorable("the result holds a NUL character, which PostgreSQL cannot store")
    _refuse_unreadable(text)
    if b"NaN" in text or b"Infinity" in text:
        _refuse_constants(text)
    return text.decode()


def error_text(error: BaseException) -> str:
    """The error and where it came from: its message first, then the innermost frames."""
    told = message(error)
    frames = _handlers_frames(error.__traceback__)
    if frames is not None:
        trace = "".join(traceback.format_tb(frames, limit=-_FRAMES))
        cause = error.__cause__
        because = f"\ncaused by {message(cause)}" if cause is not None else ""
        told = f"{told}{because}\n\n{trace}"
    return clean(told)


def message(error: BaseException) -> str:
    """`ValueError: what it says`."""
    name, words = type(error).__name__, said(error)
    return f"{name}: {words}" if words else name


def said(error: BaseException) -> str:
    """What an error says, whatever its own `__str__` does."""
    try:
        return str(error)
    except Exception as unsayable:
        return f"(its message cannot be shown: {type(unsayable).__name__})"


def clean(text: str) -> str:
    """Text that PostgreSQL can store, of bounded length: no NUL, no lone surrogate."""
    text = text[: limits.ERROR_LENGTH].replace("\x00", "\N{REPLACEMENT CHARACTER}")
    return text.encode("utf-8", "backslashreplace").decode()[: limits.ERROR_LENGTH]


def _refuse_unreadable(text: bytes) -> None:
    """What is stored must be read again: a number may have too many digits for that, or a list too many levels."""
    try:
        pydantic_core.from_json(text)
    except ValueError as error:
        raise Unstorable(f"the result could not be read again: {error}") from error


def _refuse_constants(text: bytes) -> None:
    try:
        pydantic_core.from_json(text, allow_inf_nan=False)
    except ValueError as error:
        raise Unstorable("the result holds NaN or an infinite number, which JSON does not have") from error


def _handlers_frames(frames: TracebackType | None) -> TracebackType | None:
    """Without the frames in which Taketurns called the handler."""
    while frames is not None and _is_ours(frames):
        frames = frames.tb_next
    return frames


def _is_ours(frames: TracebackType) -> bool:
    module: Any = frames.tb_frame.f_globals.get("__name__", "")
    return isinstance(module, str) and module.startswith("taketurns.execution")
