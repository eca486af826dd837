"""What the routes work with: handed in when the API is made, found again through the request."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import cast

from starlette.requests import Request

from taketurns.api.cursors import Cursors
from taketurns.api.figures import QueueFigures
from taketurns.api.task_types import TaskTypes
from taketurns.engine.broker import Broker
from taketurns.engine.job import JobBroker
from taketurns.engine.task import PassReport
from taketurns.storage.database import Database

ProcessPass = Callable[..., Awaitable[PassReport]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Parts:
    """The parts of one API. `migration` is the newest revision that this version knows."""

    database: Database
    broker: Broker
    job_broker: JobBroker | None
    task_types: TaskTypes
    figures: QueueFigures
    cursors: Cursors
    process_pass: ProcessPass | None
    version: str
    migration: str


def parts(request: Request) -> Parts:
    """The parts of the API that a request came to."""
    return cast(Parts, request.app.state.parts)
