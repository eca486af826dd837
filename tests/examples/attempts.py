"""A context to call an example handler with, as a worker would."""

import uuid
from datetime import UTC, datetime

from taketurns import Context
from taketurns.engine.task import ClaimedTask

TASK_ID = uuid.UUID("01890000-0000-7000-8000-00000000000a")


def attempt(task_id: uuid.UUID = TASK_ID) -> Context:
    now = datetime.now(UTC)
    return Context(
        ClaimedTask(
            company_id=uuid.uuid4(),
            task_id=task_id,
            type="example",
            queue="default",
            priority=5,
            run_after=now,
            retry_count=0,
            rescue_count=0,
            event_number=2,
            claimed_at=now,
            payload="{}",
            max_retries=5,
            timeout_seconds=None,
            request_id=None,
            created_at=now,
            traceparent=None,
            claim_token=uuid.uuid4(),
        )
    )
