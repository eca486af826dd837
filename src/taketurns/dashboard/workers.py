"""The page of workers: who was last heard of when, what each has in its hands, and having one drain, go on or stop."""

from __future__ import annotations

from collections import Counter
from typing import Final
from urllib.parse import quote

from sqlalchemy import func, select
from starlette.responses import Response

from taketurns.dashboard import actions
from taketurns.dashboard.overview import SILENT_SECONDS, is_of_jobs
from taketurns.dashboard.visits import Visit, needs
from taketurns.engine import orders
from taketurns.engine.key import Role
from taketurns.engine.orders import WorkerState
from taketurns.history import heartbeats
from taketurns.history.heartbeats import Heartbeat
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
        alone={
            lane
            for lane, count in Counter(map(is_of_jobs, filter(_takes_turns, page.heartbeats))).items()
            if count == 1
        },
        is_of_jobs=is_of_jobs,
        MEANT=orders.MEANT,
        has_more=page.next_after is not None,
    )


def _takes_turns(one: Heartbeat) -> bool:
    return one.left_at is None and one.state == WorkerState.RUNNING and one.age_seconds <= SILENT_SECONDS


@needs(Role.OPERATOR)
async def drain_worker(visit: Visit) -> Response:
    return await _order(visit, "drain", "It is told to take no more turns. What it runs goes on to the end.")


@needs(Role.OPERATOR)
async def resume_worker(visit: Visit) -> Response:
    return await _order(visit, "resume", "It is told to take turns again.")


@needs(Role.OPERATOR)
async def stop_worker(visit: Visit) -> Response:
    return await _order(visit, "stop", "It is told to stop, and ends once what it runs has ended.")


async def _order(visit: Visit, order: str, done: str) -> Response:
    named = quote(visit.request.path_params["worker"], safe="")
    answer = await actions.ask(visit, "POST", f"/workers/{named}/{order}")
    return visit.back(visit.link("/workers"), done if answer.is_done else answer.complaint, failed=not answer.is_done)


PAGES = (
    ("GET", "/workers", list_workers),
    ("POST", "/workers/{worker}/drain", drain_worker),
    ("POST", "/workers/{worker}/resume", resume_worker),
    ("POST", "/workers/{worker}/stop", stop_worker),
)
