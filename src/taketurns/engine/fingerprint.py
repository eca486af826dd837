"""What tells two requests under one idempotency key apart: a digest of what they ask for, however it is written."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime

from taketurns.engine.task import Unique


def fingerprint(
    *,
    type: str,
    payload: Mapping[str, object],
    queue: str | None = None,
    priority: int | None = None,
    run_after: datetime | None = None,
    delay_seconds: float | None = None,
    max_retries: int | None = None,
    timeout_seconds: float | None = None,
    tags: Sequence[str] = (),
    unique: Unique | None = None,
) -> bytes:
    """SHA-256 of a request for a task, as canonical JSON: the order of keys and white space do not count.

    Options are those that the caller gave, None for the others, and the payload holds JSON values as they were
    given, without defaults: a release that changes a default does not turn a repeated request into another one.
    """
    request = {
        "type": type,
        "payload": payload,
        "queue": queue,
        "priority": priority,
        "run_after": run_after and run_after.astimezone(UTC).isoformat(),
        "delay_seconds": delay_seconds if delay_seconds is None else float(delay_seconds),
        "max_retries": max_retries,
        "timeout_seconds": timeout_seconds if timeout_seconds is None else float(timeout_seconds),
        "tags": sorted(tags),
        "unique": unique and [unique.key, unique.seconds and float(unique.seconds), unique.on_conflict.value],
    }
    canonical = json.dumps(request, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(canonical.encode("ascii")).digest()
