"""What a client is told when its request cannot be served: problem details (RFC 9457), one kind for each cause.

Every kind has a stable code, and its `type` leads to the page that explains it. Nothing that the client sent is
repeated, save the names of its fields.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any, Final
from urllib.parse import quote

import orjson
from pydantic_core import ErrorDetails
from starlette.responses import Response
from starlette.types import Scope
from typing_extensions import TypedDict

PAGE: Final = "/docs/problems"
MEDIA_TYPE: Final = "application/problem+json"
MOST_ERRORS: Final = 100


@dataclass(frozen=True, slots=True)
class Kind:
    """A cause: its code and status, and what it means for the client. Retryable: the same request may pass later."""

    code: str
    status: int
    title: str
    advice: str
    retryable: bool = False


MALFORMED_JSON = Kind(
    "malformed_json",
    400,
    "The body is not JSON",
    "Send one JSON document in UTF-8. NaN, infinities, halves of surrogate pairs and documents nested deeper than any"
    " payload may be are not taken; the pointer leads to the place.",
)
INVALID_IDEMPOTENCY_KEY = Kind(
    "invalid_idempotency_key",
    400,
    "The Idempotency-Key is malformed",
    "Send one header of 1 to 255 printable ASCII characters that are not all blank, bare or in double quotes.",
)
MISPLACED_IDEMPOTENCY_KEY = Kind(
    "misplaced_idempotency_key",
    400,
    "A batch has no Idempotency-Key of its own",
    "Give each task of the batch its own idempotencyKey instead.",
)
UNKNOWN_PARAMETER = Kind(
    "unknown_parameter", 400, "The query has a parameter that is not known", "Use the parameters that are listed."
)
INVALID_CURSOR = Kind(
    "invalid_cursor",
    400,
    "The cursor is not one for this list",
    "Use nextCursor as it was given, with the same filters and order, or begin again without a cursor.",
)
OFFSET_TOO_LARGE = Kind(
    "offset_too_large",
    400,
    "The offset is too large",
    "Page with cursor instead: follow nextCursor or the Link header.",
)
COMPANY_NEEDED = Kind(
    "company_needed",
    400,
    "The path names no company, and no company's key came with it",
    "Name the company: /companies/{companyId}/…. Without it, paths are of the company of the caller's key.",
)
KEY_NEEDED = Kind(
    "key_needed",
    401,
    "A key is needed",
    "Send an API key in one header, Authorization: Bearer tt_…. Operators make them.",
)
INVALID_KEY = Kind(
    "invalid_key",
    401,
    "The key is not one that works",
    "Check that it was copied whole, and that it was not revoked and has not expired; the detail says what is known.",
)
INVALID_TOKEN = Kind(
    "invalid_token",
    401,
    "The token is not one that works here",
    "Get a new one from the identity provider, for this API and for a company that it knows. The API's log has the"
    " reason where it tells of everything.",
)
SCOPE_NEEDED = Kind(
    "scope_needed",
    403,
    "A scope is missing",
    "The detail names the scope. Use a key or a token that has it, or ask an operator for one.",
)
ROLE_NEEDED = Kind(
    "role_needed",
    403,
    "A greater role is needed",
    "The detail names the role. Use a key or a token that has it or a greater one.",
)
OPERATOR_NEEDED = Kind(
    "operator_needed", 403, "Only operators may do this", "Use an operator's key: companies' keys are not taken here."
)
NOT_ON_LOOPBACK = Kind(
    "not_on_loopback",
    403,
    "The service is for its own machine",
    "It asks for no keys, so it answers on loopback only. Set TAKETURNS_AUTHENTICATION=on and use a key.",
)
ROUTE_NOT_FOUND = Kind("not_found", 404, "There is nothing at this path", "Look the path up in the documentation.")
COMPANY_NOT_FOUND = Kind(
    "company_not_found", 404, "There is no such company", "Check its id or slug, or create the company first."
)
TASK_NOT_FOUND = Kind(
    "task_not_found",
    404,
    "The company has no such task",
    "Check the task's id and the company's. Finished tasks are forgotten after their retention.",
)
PAUSE_NOT_FOUND = Kind(
    "pause_not_found", 404, "There is no such pause", "List the pauses: queue and type must be those of one of them."
)
SCHEDULE_NOT_FOUND = Kind(
    "schedule_not_found", 404, "The company has no such schedule", "Check the schedule's id and the company's."
)
KEY_NOT_FOUND = Kind(
    "key_not_found", 404, "There is no such key", "Check the key's id, and whether it is a company's or an operator's."
)
OPERATION_NOT_FOUND = Kind(
    "operation_not_found",
    404,
    "The company has no such operation",
    "Check the operation's id and the company's. Operations are forgotten 30 days after their end.",
)
WORKER_NOT_FOUND = Kind(
    "worker_not_found",
    404,
    "There is no such worker",
    "Name it by the id or the name that the list of workers has. Workers are forgotten once they were not heard of for"
    " 7 days.",
)
JOB_NOT_FOUND = Kind(
    "job_not_found",
    404,
    "The company has no such job",
    "Check the job's id and the company's. Jobs that have ended are forgotten after a while: see expiresAt.",
)
JOBS_NOT_CONFIGURED = Kind(
    "jobs_not_configured",
    404,
    "This service has no jobs",
    "Create a task instead, or have the service started with TAKETURNS_REDIS_URL set to a Redis or Valkey.",
)
METHOD_NOT_ALLOWED = Kind(
    "method_not_allowed", 405, "The path does not take this method", "Use one of the methods in the Allow header."
)
WORKER_GONE = Kind(
    "worker_gone",
    409,
    "The worker takes no orders",
    "It has left, or is a pass, which ends by itself; the list of workers tells. What it held is given to others.",
)
WORKER_STOPS = Kind(
    "worker_stops",
    409,
    "The worker was told to stop",
    "It does nothing else any more: it ends once what it runs has ended. Start another one in its place.",
)
INVALID_STATE = Kind(
    "invalid_state",
    409,
    "The task's status forbids this",
    "Look at the task's status: it says what can be done with it.",
)
UNIQUE_KEY_TAKEN = Kind(
    "unique_key_taken",
    409,
    "Another task has this unique key",
    "Nothing was created. The detail names the task that has the key: wait until it gives it up, at its end or after"
    " its uniqueSeconds, or cancel it while it waits. With onConflict return you are given that task instead, with"
    " replace it is cancelled if it still waits.",
)
TASK_FORGOTTEN = Kind(
    "task_forgotten",
    409,
    "The task of this idempotency key is forgotten",
    "The key made a task whose retention has ended. Use a new key to create another.",
)
SLUG_TAKEN = Kind("slug_taken", 409, "Another company has this slug", "Choose another slug.")
SCHEDULE_NAME_TAKEN = Kind(
    "schedule_name_taken",
    409,
    "The company has another schedule of this name",
    "Choose another name, or change the schedule that there is.",
)
TOO_MANY_SCHEDULES = Kind(
    "too_many_schedules",
    409,
    "The company has as many schedules as it may make",
    "Delete one that is not needed. GET /limits tells how many there may be.",
)
KEY_NOT_ACTIVE = Kind(
    "key_not_active", 409, "The key works no more", "It was revoked or has expired. Make a new key instead."
)
COMPANY_HAS_OPEN_TASKS = Kind(
    "company_has_open_tasks",
    409,
    "The company has tasks or jobs that have not ended",
    "Cancel them or let them end, then delete the company; or delete it with force=true.",
)
BODY_TOO_LARGE = Kind(
    "body_too_large", 413, "The body or the payload is too large", "GET /limits says how large they may be."
)
UNSUPPORTED_MEDIA_TYPE = Kind(
    "unsupported_media_type",
    415,
    "The body's media type is not supported",
    "Send it as Content-Type: application/json, not compressed.",
)
INVALID_REQUEST = Kind(
    "invalid_request", 422, "The request has fields that are not valid", "Correct the fields that errors point at."
)
UNKNOWN_TYPE = Kind(
    "unknown_type",
    422,
    "No handler is known for this type",
    "Use a known type: GET /task-types lists them. A type is known once a worker with its handler has started.",
)
INVALID_PAYLOAD = Kind(
    "invalid_payload",
    422,
    "The payload does not fit its type",
    "Correct the fields that errors point at; GET /task-types shows the schema.",
)
IDEMPOTENCY_KEY_REUSED = Kind(
    "idempotency_key_reused",
    422,
    "The idempotency key was used for another request",
    "Use a new key for a new request, or repeat the first request as it was.",
)
QUOTA_EXCEEDED = Kind(
    "quota_exceeded",
    429,
    "The company's quota is used up",
    "Nothing was created. Wait as long as Retry-After says: then the period begins anew. The detail names the period,"
    " GET /companies/{companyId}/usage shows all of them.",
    retryable=True,
)
QUEUE_FULL = Kind(
    "queue_full",
    429,
    "The company has as many tasks waiting as it may have",
    "Nothing was created. Submit it again when some of the company's tasks have started, or fewer at a time: the detail"
    " tells its maxQueued.",
    retryable=True,
)
TOO_MANY_OPERATIONS = Kind(
    "too_many_operations",
    429,
    "The company has as many operations as may go on at a time",
    "Nothing was begun. Begin it again when one of the company's operations has ended, or abort one.",
    retryable=True,
)
TOO_MANY_REQUESTS = Kind(
    "too_many_requests",
    429,
    "The company's keys make too many requests",
    "Nothing was done. Wait as long as Retry-After says; RateLimit tells how many requests are left. The company's"
    " requestRate tells how many its keys may make, all together: operators decide it.",
    retryable=True,
)
TOO_MANY_WRONG_KEYS = Kind(
    "too_many_wrong_keys",
    429,
    "Too many requests came from this address without a key that works",
    "Nothing was done, and the key was not looked at. Wait as long as Retry-After says, then send a key that works.",
    retryable=True,
)
INTERNAL_ERROR = Kind(
    "internal_error",
    500,
    "Something went wrong here",
    "It is not your request's fault. Report the requestId: the log tells the rest. Repeat with an Idempotency-Key.",
    retryable=True,
)
UNAVAILABLE = Kind(
    "unavailable",
    503,
    "The service cannot reach its database",
    "Repeat the request after the time in Retry-After, best with an Idempotency-Key.",
    retryable=True,
)
IDENTITY_PROVIDER_UNAVAILABLE = Kind(
    "identity_provider_unavailable",
    503,
    "The identity provider's keys cannot be read",
    "The token cannot be checked. Repeat the request after the time in Retry-After, or use an API key.",
    retryable=True,
)
QUOTA_BUSY = Kind(
    "quota_busy",
    503,
    "The company's quotas are in use",
    "Another transaction that submits tasks for the company is taking long. Nothing was created: repeat the request.",
    retryable=True,
)
JOBS_UNAVAILABLE = Kind(
    "jobs_unavailable",
    503,
    "The service cannot reach the jobs' broker",
    "Repeat the request after the time in Retry-After, best with an Idempotency-Key. Tasks are not affected.",
    retryable=True,
)
BEING_DELETED = Kind(
    "being_deleted",
    503,
    "The company is being deleted",
    "Nothing was created. Repeat the request after the time in Retry-After: then the company is gone, or it was not"
    " deleted after all.",
    retryable=True,
)
JOB_UNCONFIRMED = Kind(
    "job_unconfirmed",
    503,
    "What was asked is done, but a crash of the jobs' server may undo it",
    "Repeat the request after the time in Retry-After: that changes nothing more, and has it confirmed. Only a job"
    " without an Idempotency-Key would be created twice: look for it at Location instead.",
    retryable=True,
)
TOO_MANY_STREAMS = Kind(
    "too_many_streams",
    503,
    "Too many requests watch jobs already",
    "Come again after the time in Retry-After, or look at the job now and then.",
    retryable=True,
)
NOT_READY = Kind(
    "not_ready", 503, "This process is not ready to serve", "Wait: the detail says for what.", retryable=True
)

KINDS: Final = tuple(kind for kind in list(globals().values()) if isinstance(kind, Kind))
IN_BODY: Final = (MALFORMED_JSON, BODY_TOO_LARGE, UNSUPPORTED_MEDIA_TYPE, INVALID_REQUEST, UNKNOWN_PARAMETER)
RETRY_AFTER_SECONDS: Final = 1


class FieldError(TypedDict):
    """One thing that is wrong: where in the request (a JSON pointer, RFC 6901, or a parameter's name), and what."""

    pointer: str
    code: str
    detail: str


class ProblemBody(TypedDict):
    """Problem details, RFC 9457."""

    type: str
    title: str
    status: int
    detail: str
    instance: str
    code: str
    requestId: str
    retryable: bool
    errors: list[FieldError]


class Problem(Exception):
    """A request that cannot be served, as its client is told."""

    def __init__(
        self,
        kind: Kind,
        detail: str,
        *,
        errors: Iterable[FieldError] = (),
        headers: Mapping[str, str] | None = None,
        retryable: bool | None = None,
    ) -> None:
        super().__init__(detail)
        self.kind = kind
        self.detail = detail
        self.errors = list(errors)[:MOST_ERRORS]
        self.headers = dict(headers or {})
        self.retryable = kind.retryable if retryable is None else retryable


def response(scope: Scope, problem: Problem) -> Response:
    """The answer that tells of a problem."""
    kind = problem.kind
    body = ProblemBody(
        type=f"{PAGE}#{kind.code}",
        title=kind.title,
        status=kind.status,
        detail=problem.detail,
        instance=quote(scope["path"]),
        code=kind.code,
        requestId=scope.get("request_id", ""),
        retryable=problem.retryable,
        errors=problem.errors,
    )
    headers = dict(problem.headers)
    if kind.status == HTTPStatus.SERVICE_UNAVAILABLE:
        headers.setdefault("retry-after", str(RETRY_AFTER_SECONDS))
    return Response(orjson.dumps(body), kind.status, headers, MEDIA_TYPE)


def pointer(path: Iterable[str | int]) -> str:
    """A path as a JSON pointer."""
    return "".join(f"/{str(part).replace('~', '~0').replace('/', '~1')}" for part in path)


def field_errors(
    errors: Iterable[ErrorDetails | Mapping[str, Any]], *, within: Sequence[str | int] = ()
) -> list[FieldError]:
    """Validation errors of pydantic's form as fields of a document, or of its part `within`."""
    return [_field_error((*within, *error["loc"]), str(error["type"]), str(error["msg"])) for error in errors]


_WRONG_TYPES: Final = {
    **dict.fromkeys(
        ("model_type", "model_attributes_type", "dataclass_type", "dict_type", "mapping_type"),
        ("object_type", "must be an object"),
    ),
    **dict.fromkeys(
        ("list_type", "tuple_type", "set_type", "frozen_set_type", "iterable_type"), ("array_type", "must be an array")
    ),
}
"""What pydantic says in words of Python, in those of JSON."""


def _field_error(path: Iterable[str | int], code: str, detail: str) -> FieldError:
    code, detail = _WRONG_TYPES.get(code, (code, detail))
    return FieldError(pointer=pointer(path), code=code, detail=detail)


def also_documented(answers: dict[str, Any], *kinds: Kind) -> None:
    """Add what else a route may answer with to its responses in the OpenAPI document."""
    for status, more in documented(*kinds).items():
        known = answers.setdefault(str(status), more)
        told = [text for text in more["description"].split("\n\n") if text not in known["description"]]
        known["description"] = "\n\n".join([known["description"], *told])


def documented(*kinds: Kind) -> dict[int | str, dict[str, Any]]:
    """The OpenAPI responses of a route that may answer with these kinds, and with those that every route may."""
    by_status: dict[int, list[Kind]] = {}
    for kind in sorted({*kinds, INTERNAL_ERROR, UNAVAILABLE}, key=lambda kind: (kind.status, kind.code)):
        by_status.setdefault(kind.status, []).append(kind)
    return {status: _documented(same) for status, same in by_status.items()}


def _documented(kinds: Sequence[Kind]) -> dict[str, Any]:
    return {
        "description": "\n\n".join(f"`{kind.code}`: {kind.title}. {kind.advice}" for kind in kinds),
        "content": {MEDIA_TYPE: {"schema": {"$ref": "#/components/schemas/Problem"}}},
    }
