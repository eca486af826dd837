"""Where a task stands: the three narrow tables beside its record, and the status that follows from them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

from sqlalchemy import ColumnElement, Label, Select, and_, case, func

from taketurns.engine.task import Status
from taketurns.storage.models import PendingTask, ProcessingTask, ScheduledTask, Task

AnySelect = Select[*tuple[Any, ...]]
Place = type[ScheduledTask] | type[PendingTask] | type[ProcessingTask]

PLACES: Final[dict[Status, Place]] = {
    Status.SCHEDULED: ScheduledTask,
    Status.PENDING: PendingTask,
    Status.PROCESSING: ProcessingTask,
}


def joined(statement: AnySelect) -> AnySelect:
    """A statement on `tasks` with the narrow tables beside it; lives on their (company_id, task_id) indexes."""
    for place in PLACES.values():
        statement = statement.outerjoin(place, and_(place.company_id == Task.company_id, place.task_id == Task.id))
    return statement


def columns() -> Iterator[Label[Any]]:
    """What a task is doing, as a joined statement tells it."""
    yield status().label("status")
    yield func.coalesce(*(table.run_after for table in (*PLACES.values(), Task))).label("run_after")
    yield func.coalesce(ProcessingTask.claimed_at, Task.started_at).label("started_at")
    yield func.coalesce(*(table.retry_count for table in (*PLACES.values(), Task))).label("retry_count")
    yield func.coalesce(*(table.event_number for table in (*PLACES.values(), Task))).label("event_number")
    yield func.coalesce(ProcessingTask.worker_id, Task.worker_id).label("worker_id")


def status() -> ColumnElement[str]:
    """The status of a task. A record that has not ended and stands nowhere, an operator's doing, is told as pending."""
    return case(
        (ProcessingTask.task_id.is_not(None), Status.PROCESSING.value),
        (PendingTask.task_id.is_not(None), Status.PENDING.value),
        (ScheduledTask.task_id.is_not(None), Status.SCHEDULED.value),
        (Task.stopped_as.is_not(None), Task.stopped_as),
        (Task.finished_at.is_not(None), Status.COMPLETED.value),
        else_=Status.PENDING.value,
    )
