"""A task as its request and its type want it, whichever broker it goes to."""

from __future__ import annotations

from collections.abc import Sequence

from starlette.requests import Request
from typing_extensions import TypedDict

from taketurns.api import headers, payloads
from taketurns.api.parts import Parts
from taketurns.api.requests import CreateJob, CreateTask
from taketurns.engine.fingerprint import fingerprint
from taketurns.engine.task import NewTask, OnConflict, Unique


class Origin(TypedDict):
    """What a task keeps of the request that created it."""

    request_id: str
    traceparent: str | None


def origin(request: Request) -> Origin:
    return Origin(request_id=request.scope["request_id"], traceparent=headers.traceparent(request.scope))


async def new_task(given: Parts, body: CreateJob, *, key: str | None, within: Sequence[str | int] = ()) -> NewTask:
    """A task as its type and the request want it. Raises Problem: 413 or 422."""
    known, text = await payloads.checked(given, body.type, body.payload, within=within)
    return NewTask(
        type=body.type,
        payload=text,
        queue=known.queue if body.queue is None else body.queue,
        priority=known.priority if body.priority is None else body.priority,
        run_after=body.run_after,
        delay_seconds=body.delay_seconds,
        max_retries=known.max_retries if body.max_retries is None else body.max_retries,
        timeout_seconds=known.timeout_seconds if body.timeout_seconds is None else body.timeout_seconds,
        tags=_tags(body),
        unique=_unique(body),
        idempotency_key=key,
        fingerprint=None if key is None else _fingerprint(body),
    )


def _tags(body: CreateJob) -> tuple[str, ...]:
    return tuple(body.tags) if isinstance(body, CreateTask) else ()


def _unique(body: CreateJob) -> Unique | None:
    if not isinstance(body, CreateTask) or body.unique_key is None:
        return None
    return Unique(body.unique_key, body.unique_seconds, OnConflict(body.on_conflict or OnConflict.REJECT))


def _fingerprint(body: CreateJob) -> bytes:
    return fingerprint(
        type=body.type,
        payload=body.payload,
        queue=body.queue,
        priority=body.priority,
        run_after=body.run_after,
        delay_seconds=body.delay_seconds,
        max_retries=body.max_retries,
        timeout_seconds=body.timeout_seconds,
        tags=_tags(body),
        unique=_unique(body),
    )
