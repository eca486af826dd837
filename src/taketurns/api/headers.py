"""The headers that requests bring: who they are, which trace they belong to, whether they were sent before, how long
they would wait, what they have seen already, and whether their answers may be compressed; and those that tell clients
how their quotas stand."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Sequence
from typing import Any, Final

from starlette.types import Scope

from taketurns.api import problems
from taketurns.api.problems import Problem
from taketurns.engine import limits
from taketurns.engine.errors import QuotaExceeded
from taketurns.engine.quota import Allowance
from taketurns.engine.rate import Rate
from taketurns.storage.ids import new_id

REQUEST_ID: Final = "X-Request-Id"
TRACEPARENT: Final = "traceparent"
IDEMPOTENCY_KEY: Final = "Idempotency-Key"
HELD: Final = "Unique-Key-Held"
REPLAYED: Final = "Idempotent-Replayed"
RETRY_AFTER: Final = "Retry-After"
RATE_LIMIT: Final = "RateLimit"
RATE_LIMIT_POLICY: Final = "RateLimit-Policy"
PREFER: Final = "Prefer"
PREFERENCE_APPLIED: Final = "Preference-Applied"
IF_NONE_MATCH: Final = "If-None-Match"
LAST_EVENT_ID: Final = "Last-Event-ID"

_SAFE_REQUEST_ID: Final = re.compile(rb"[A-Za-z0-9._~:/+=@-]{1,%d}" % limits.REQUEST_ID_LENGTH)
_TRACEPARENT: Final = re.compile(rb"00-(?!0{32})[0-9a-f]{32}-(?!0{16})[0-9a-f]{16}-[0-9a-f]{2}")
_GZIP: Final = re.compile(rb"gzip(?:\s*;\s*q=(?:1(?:\.0{0,3})?|0\.(?!0*$)\d{1,3}))?", re.IGNORECASE)
_PRINTABLE: Final = re.compile(rb"[ -~]*[!-~][ -~]*")
_QUOTED: Final = re.compile(rb'"((?:[^"\\]|\\["\\])*)"')
_ESCAPED: Final = re.compile(rb"\\(.)")
_BETWEEN_COMMAS: Final = re.compile(rb'(?:[^,"]|"(?:[^"\\]|\\.)*"?)+')
_TOKEN: Final = rb"[!#$%&'*+.^_`|~0-9A-Za-z-]+"
_PREFERENCE: Final = re.compile(
    rb'(%b)(?:[ \t]*=[ \t]*(%b|"(?:[^"\\]|\\.)*")?)?[ \t]*(?:;.*)?' % (_TOKEN, _TOKEN), re.DOTALL
)
_LONG_NUMBER: Final = 10
_ENTITY_TAG: Final = re.compile(rb'(?:W/)?("[\x21\x23-\x7E\x80-\xFF]*")')


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


def wait_seconds(scope: Scope) -> int | None:
    """For how long the client prefers to wait (RFC 7240), the most that it may have; None if it says nothing of that,
    or nothing that can be understood."""
    for preference in _elements(scope, b"prefer"):
        understood = _PREFERENCE.fullmatch(preference)
        if understood is None or understood[1].lower() != b"wait":
            continue
        value = _ESCAPED.sub(rb"\1", (understood[2] or b"").strip(b'"'))
        if not value.isdigit():
            return None
        digits = value.lstrip(b"0") or b"0"
        return min(int(digits[:9]), limits.WAIT_SECONDS_MAX) or None  # of several, only the first counts
    return None


def has_seen(scope: Scope, version: str) -> bool:
    """Whether If-None-Match names this version, the text of an entity tag (RFC 9110, section 13.1.2)."""
    for known in _elements(scope, b"if-none-match"):
        tag = _ENTITY_TAG.fullmatch(known)
        if known == b"*" or (tag is not None and tag[1] == b'"%b"' % version.encode()):
            return True
    return False


def names_versions(scope: Scope) -> bool:
    """Whether the request has If-None-Match at all."""
    return any(name == b"if-none-match" for name, _ in scope["headers"])


def last_event_id(scope: Scope) -> int:
    """The number of the last event that a client has seen of a stream; 0 for one that has seen none, or cannot say."""
    for name, value in scope["headers"]:
        if name == b"last-event-id" and value.isdigit() and len(value) < _LONG_NUMBER:
            return int(value)
    return 0


def _elements(scope: Scope, header: bytes) -> Iterator[bytes]:
    """The elements of a header that is a list, in however many lines."""
    for name, value in scope["headers"]:
        if name == header:
            yield from (element.strip(b" \t") for element in _BETWEEN_COMMAS.findall(value))


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


def request_rate(allowed: Rate, left: int, full_seconds: float) -> dict[str, str]:
    """A company's rate of requests in the same form; `left` at the process that answers, `full_seconds` until it has
    all of its part again."""
    return {
        RATE_LIMIT_POLICY: f'"requests";q={allowed.tasks};w={allowed.seconds}',
        RATE_LIMIT: f'"requests";r={left};t={math.ceil(full_seconds)}',
    }


def wait(seconds: float) -> dict[str, str]:
    """When a client may come again."""
    return {RETRY_AFTER: str(max(math.ceil(seconds), 1))}


def quota_exceeded(error: QuotaExceeded) -> dict[str, str]:
    """What a client is to know of when it may submit again."""
    return rate_limit(error.allowances) | wait(error.retry_after)


def parameter(name: str, description: str, schema: dict[str, Any]) -> dict[str, Any]:
    """A header in the OpenAPI document."""
    return {"name": name, "in": "header", "required": False, "description": description, "schema": schema}


TRACEPARENT_PARAMETER: Final = parameter(
    TRACEPARENT,
    "The trace that the request belongs to (W3C Trace Context): kept with its tasks and given to their handlers."
    " A malformed one is ignored.",
    {"type": "string"},
)
PREFER_PARAMETER: Final = parameter(
    PREFER,
    f"`wait=N` (RFC 7240): answer once the task has ended, or after N seconds with the task as it is. At most"
    f" {limits.WAIT_SECONDS_MAX}. Preference-Applied tells what was done; nothing of it, and at once, when too many"
    " requests wait already.",
    {"type": "string"},
)
IF_NONE_MATCH_PARAMETER: Final = parameter(
    IF_NONE_MATCH,
    "The ETag of a task as it was seen before: 304 if it still stands so. With `Prefer: wait=N`, wait for the next"
    " change of the task instead of its end.",
    {"type": "string"},
)
LAST_EVENT_ID_PARAMETER: Final = parameter(
    LAST_EVENT_ID,
    "The id of the last event that was seen: the stream goes on after it. What is no number counts as none.",
    {"type": "string"},
)
IDEMPOTENCY_KEY_PARAMETER: Final = parameter(
    IDEMPOTENCY_KEY,
    "Makes repeating the request safe: the same key with the same request answers with the task that the first made."
    " Keys belong to their company and are kept for 24 hours unless set otherwise.",
    {"type": "string", "minLength": 1, "maxLength": limits.IDEMPOTENCY_KEY_LENGTH, "pattern": r"^[!-~]([ -~]*[!-~])?$"},
)
