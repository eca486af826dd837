"""The page on which turns are seen as they are taken: a lane for each hand, a bar for each attempt, for a minute."""

from __future__ import annotations

from datetime import timedelta
from typing import Final

import orjson
from starlette.responses import Response

from taketurns.dashboard import visits
from taketurns.dashboard.rendering import colour
from taketurns.dashboard.visits import Visit, needs
from taketurns.engine.key import Role
from taketurns.history import live
from taketurns.history.live import Moment
from taketurns.storage.database import Database

SHOWN: Final = timedelta(seconds=60)
LATELY: Final = timedelta(seconds=15)


@needs(Role.VIEWER)
async def show(visit: Visit) -> Response:
    """The lanes, and what runs now as a table."""
    moment = await live.read(visit.parts.database, lately=SHOWN)
    running = [attempt for attempt in moment.attempts if attempt.finished_at is None]
    names = {worker.worker_id: worker.name for worker in moment.workers}
    return visit.page("live.html", moment=moment, running=running[:100], names=names, seconds=SHOWN.total_seconds())


@needs(Role.VIEWER)
async def stream(visit: Visit) -> Response:
    """What changes, every second."""
    database = visit.parts.database

    async def look() -> str:
        return _told(await live.read(database, lately=LATELY))

    return visit.parts.streams.response(await _first(database), look, lambda: visits.may_stay(visit))


async def _first(database: Database) -> str:
    return _told(await live.read(database, lately=SHOWN))


def _told(moment: Moment) -> str:
    return orjson.dumps(
        {
            "at": moment.at.timestamp(),
            "workers": [
                {"id": str(worker.worker_id), "name": worker.name, "hands": worker.count} for worker in moment.workers
            ],
            "attempts": [
                {
                    "id": f"{attempt.task_id}",
                    "company": moment.slugs.get(attempt.company_id, ""),
                    "look": colour(moment.slugs.get(attempt.company_id, "")),
                    "type": attempt.type,
                    "worker": str(attempt.worker_id),
                    "from": attempt.started_at.timestamp(),
                    "to": attempt.finished_at and attempt.finished_at.timestamp(),
                    "status": attempt.status,
                }
                for attempt in moment.attempts
            ],
        }
    ).decode()


PAGES = (
    ("GET", "/live", show),
    ("GET", "/live/stream", stream),
)
