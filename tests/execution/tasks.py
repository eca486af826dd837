"""A claimed task as a broker would hand it out."""

import uuid
from datetime import UTC, datetime
from typing import Any

from taketurns.engine.task import ClaimedTask

NOW = datetime(2026, 12, 1, 12, 0, tzinfo=UTC)


def claimed(type: str = "work", payload: str = "{}", **changes: Any) -> ClaimedTask:
    """`changes` are fields of the task."""
    task = ClaimedTask(
        company_id=uuid.UUID("01890000-0000-7000-8000-000000000001"),
        task_id=uuid.uuid4(),
        type=type,
        queue="default",
        priority=5,
        run_after=NOW,
        retry_count=0,
        rescue_count=0,
        event_number=2,
        claimed_at=NOW,
        payload=payload,
        max_retries=5,
        timeout_seconds=None,
        request_id=None,
        created_at=NOW,
        traceparent=None,
        claim_token=uuid.uuid4(),
    )
    return task._replace(**changes)
