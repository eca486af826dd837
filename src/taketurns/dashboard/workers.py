"""The page of workers: who was last heard of when, and what each has in its hands."""

from __future__ import annotations

from typing import Final

from sqlalchemy import func, select
from starlette.responses import Response

from taketurns.dashboard.overview import SILENT_SECONDS
from taketurns.dashboard.visits import Visit, needs
from taketurns.engine.key import Role
from taketurns.history import heartbeats
from taketurns.storage.models import ProcessingTask, Worker

LIMIT: Final = 100


@needs(Role.VIEWER)
async def list_workers(visit: Visit) -> Response:
    """Workers and passes, those that began last first."""
    database = visit.parts.database
    page = await heartbeats.page(database, limit=LIMIT)
    held = (
        select(Worker.name, func.count(ProcessingTask.task_id))
        .outerjoin(ProcessingTask, ProcessingTask.worker_id == Worker.id)
        .group_by(Worker.name)
    )
    holding: dict[str, int] = dict(await database.fetch(held))
    return visit.page(
        "workers.html",
        workers=page.heartbeats,
        holding=holding,
        silent=SILENT_SECONDS,
        has_more=page.next_after is not None,
    )


PAGES = (("GET", "/workers", list_workers),)
