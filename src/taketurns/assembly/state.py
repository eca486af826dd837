"""A task as it stands, for Python code: its payload and result are values and not text."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Any, Self
from uuid import UUID

from pydantic_core import from_json

from taketurns.engine.errors import NotCompleted
from taketurns.engine.task import Status

if TYPE_CHECKING:
    from taketurns.history.tasks import TaskRecord


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskState:
    """`result` is what the handler returned, as JSON has it; `error` is of the last attempt that failed."""

    id: UUID
    company_id: UUID
    type: str
    status: Status
    payload: dict[str, Any]
    result: Any
    error: str | None
    queue: str
    priority: int
    retry_count: int
    max_retries: int
    timeout_seconds: float | None
    tags: tuple[str, ...]
    unique_key: str | None
    run_after: datetime
    created_at: datetime
    started_at: datetime | None
    finished_at: datetime | None

    def returned(self) -> Any:
        """What the handler returned, as JSON has it. Raises NotCompleted unless the task has completed."""
        if self.status is not Status.COMPLETED:
            raise NotCompleted(self.id, self.status, self.error)
        return self.result

    @classmethod
    def of(cls, record: TaskRecord) -> Self:
        """The state that a record of the history tells of."""
        return cls(
            id=record.id,
            company_id=record.company_id,
            type=record.type,
            status=Status(record.status),
            payload=from_json(record.payload),
            result=None if record.result is None else from_json(record.result),
            error=record.error,
            queue=record.queue,
            priority=record.priority,
            retry_count=record.retry_count,
            max_retries=record.max_retries,
            timeout_seconds=record.timeout_seconds,
            tags=tuple(record.tags or ()),
            unique_key=record.unique_key,
            run_after=record.run_after,
            created_at=record.created_at,
            started_at=record.started_at,
            finished_at=record.finished_at,
        )
