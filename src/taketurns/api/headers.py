"""The headers that requests bring: who they are, which trace they belong to, whether they were sent
before, and whether their answers may be compressed; and those that tell clients how their quotas stand."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from typing import Any, Final

from starlette.types import Scope

from taketurns.api import problems
from taketurns.api.problems import Problem
from taketurns.engine import limits
from taketurns.engine.errors import QuotaExceeded
from taketurns.engine.quota import Allowance
from taketurns.storage.ids import new_id

REQUEST_ID: Final = "X-Request-Id"
TRACEPARENT: Final = "traceparent"
IDEMPOTENCY_KEY: Final = "Idempotency-Key"
REPLAYED: Final = "Idempotent-Replayed"
RETRY_AFTER: Final = "Retry-After"
RATE_LIMIT: Final = "RateLimit"
RATE_LIMIT_POLICY: Final = "RateLimit-Policy"

_SAFE_REQUEST_ID: Final = re.compile(rb"[A-Za-z0-9._~:/+=@-]{1,%d}" % limits.REQUEST_ID_LENGTH)
_TRACEPARENT: Final = re.compile(rb"00-(?!0{32})[0-9a-f]{32}-(?!0{16})[0-9a-f]{16}-[0-9a-f]{2}")
_GZIP: Final = re.compile(rb"gzip(?:\s*;\s*q=(?:1(?:\.0{0,3})?|0\.(?!0*$)\d{1,3}))?", re.IGNORECASE)
_PRINTABLE: Final = re.compile(rb"[ -~]*[!-~][ -~]*")
_QUOTED: Final = re.compile(rb'"((?:[^"\\]|\\["\\])*)"')
_ESCAPED: Final = re.compile(rb"\\(.)")


def request_id(scope: Scope) -> str:
    """The id that the client gave its request, when it is safe to repeat and to log; else a new one."""
    for name, value in scope["headers"]:
        if name == b"x-request-id" and _SAFE_REQUEST_ID.fullmatch(value):
            return str(value, "ascii")
    return str(new_id())


def traceparent(scope: Scope) -> str | None:
    """The trace that the request belongs to (W3C Trace Context, version 00); a malformed one counts as none."""
    values = [value for name, value in scope["headers"] if name == b"traceparent"]
    if len(values) == 1 and _TRACEPARENT.fullmatch(values[0]):
        return str(values[0], "ascii")
    return None


def idempotency_key(scope: Scope) -> str | None:
    """The key of the request, without the quotes that it may have. Raises Problem when it is malformed."""
    values = [value for name, value in scope["headers"] if name == b"idempotency-key"]
    if not values:
        return None
    key = values[0].strip(b" \t")
    if key.startswith(b'"'):
        quoted = _QUOTED.fullmatch(key)
        key = _ESCAPED.sub(rb"\1", quoted[1]) if quoted else b""
    if len(values) > 1 or len(key) > limits.IDEMPOTENCY_KEY_LENGTH or not _PRINTABLE.fullmatch(key):
        raise Problem(
            problems.INVALID_IDEMPOTENCY_KEY,
            f"{IDEMPOTENCY_KEY}: must be one header of 1 to {limits.IDEMPOTENCY_KEY_LENGTH} printable ASCII characters,"
            " not all blank, bare or in double quotes",
        )
    return str(key, "ascii")


def takes_gzip(scope: Scope) -> bool:
    """Whether the client names gzip among the encodings that it takes (RFC 9110, section 12.5.3)."""
    return any(
        _GZIP.fullmatch(coding.strip(b" \t"))
        for name, value in scope["headers"]
        if name == b"accept-encoding"
        for coding in value.split(b",")
    )


def rate_limit(allowances: Sequence[Allowance]) -> dict[str, str]:
    """The quotas of a company as draft-ietf-httpapi-ratelimit-headers has them; empty when it has none."""
    limited = [(one, one.quota, one.remaining) for one in allowances if one.quota is not None]
    if not limited:
        return {}
    policy = (
        f'"{one.period}";q={quota};w={math.ceil((one.ends_at - one.starts_at).total_seconds())}'
        for one, quota, _ in limited
    )
    state = (f'"{one.period}";r={remaining};t={math.ceil(one.seconds_left)}' for one, _, remaining in limited)
    return {RATE_LIMIT_POLICY: ", ".join(policy), RATE_LIMIT: ", ".join(state)}


def quota_exceeded(error: QuotaExceeded) -> dict[str, str]:
    """What a client is to know of when it may submit again."""
    return rate_limit(error.allowances) | {RETRY_AFTER: str(max(math.ceil(error.retry_after), 1))}


def parameter(name: str, description: str, schema: dict[str, Any]) -> dict[str, Any]:
    """A header in the OpenAPI document."""
    return {"name": name, "in": "header", "required": False, "description": description, "schema": schema}


TRACEPARENT_PARAMETER: Final = parameter(
    TRACEPARENT,
    "The trace that the request belongs to (W3C Trace Context): kept with its tasks and given to their handlers."
    " A malformed one is ignored.",
    {"type": "string"},
)
IDEMPOTENCY_KEY_PARAMETER: Final = parameter(
    IDEMPOTENCY_KEY,
    "Makes repeating the request safe: the same key with the same request answers with the task that the first made."
    " Keys belong to their company and are kept for 24 hours unless set otherwise.",
    {"type": "string", "minLength": 1, "maxLength": limits.IDEMPOTENCY_KEY_LENGTH, "pattern": r"^[!-~]([ -~]*[!-~])?$"},
)
