"""Holding a payload to its type, for whatever a request makes of the two."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from taketurns.api import bodies, problems
from taketurns.api.parts import Parts
from taketurns.api.problems import FieldError, Problem
from taketurns.api.task_types import KnownType
from taketurns.engine import payload
from taketurns.engine.errors import InvalidPayload, UnknownType


async def checked(
    given: Parts, type: str, values: Mapping[str, Any], *, within: Sequence[str | int] = ()
) -> tuple[KnownType, str]:
    """The type of this name, and the payload as JSON text. Raises Problem: 413 or 422."""
    try:
        known = await given.task_types.get(type)
        text = payload.encode(type, values)
        known.check(values)
    except UnknownType as error:
        where = problems.pointer((*within, "type"))
        raise Problem(
            problems.UNKNOWN_TYPE,
            str(error),
            errors=[FieldError(pointer=where, code="unknown_type", detail=str(error))],
        ) from None
    except InvalidPayload as error:
        raise _invalid(error, within) from None
    return known, text


def _invalid(error: InvalidPayload, within: Sequence[str | int]) -> Problem:
    errors = problems.field_errors(error.errors, within=(*within, "payload"))
    is_too_large = any(wrong["type"] == payload.TOO_LARGE for wrong in error.errors)
    return Problem(
        problems.BODY_TOO_LARGE if is_too_large else problems.INVALID_PAYLOAD, bodies.told(errors), errors=errors
    )
