"""What is said of a task, and where it may go."""

from __future__ import annotations

from datetime import UTC, datetime
from uuid import UUID

from taketurns.engine.task import TERMINAL, ClaimedTask, Outcome, Status

NOON = datetime(2030, 1, 1, 12, tzinfo=UTC)


def claimed(retry_count: int = 0, rescue_count: int = 0) -> ClaimedTask:
    return ClaimedTask(
        company_id=UUID(int=1),
        task_id=UUID(int=2),
        type="work",
        queue="default",
        priority=5,
        run_after=NOON,
        retry_count=retry_count,
        rescue_count=rescue_count,
        event_number=2,
        claimed_at=NOON,
        payload="{}",
        max_retries=5,
        timeout_seconds=None,
        request_id=None,
        created_at=NOON,
        traceparent=None,
        claim_token=UUID(int=3),
    )


def test_an_end_is_completed_failed_or_cancelled() -> None:
    assert {status for status in Status if status.is_terminal} == TERMINAL == {"completed", "failed", "cancelled"}


def test_every_outcome_but_a_retry_and_a_deferral_is_an_end() -> None:
    assert {outcome.value for outcome in Outcome} - {"retry", "deferred"} == {status.value for status in TERMINAL}


def test_retries_count_as_attempts_and_rescues_do_not() -> None:
    assert claimed().attempt == 1
    assert claimed(retry_count=2).attempt == 3
    assert claimed(rescue_count=2).attempt == 1
