"""The first page: how it goes, who has how much of it, and what wants attention."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from starlette.responses import Response

from taketurns.companies import directory
from taketurns.dashboard import charts
from taketurns.dashboard.charts import Chart, Line
from taketurns.dashboard.rendering import count, length
from taketurns.dashboard.visits import Visit, needs
from taketurns.engine.key import Role
from taketurns.engine.task import Status
from taketurns.history import board, figures, heartbeats, series
from taketurns.history.board import Standing
from taketurns.history.figures import Figures
from taketurns.history.heartbeats import Heartbeat
from taketurns.history.series import EVERYBODY, SPANS, Series, added

LIMIT: Final = 1_000
FLOODS_MOST: Final = 12
SILENT_SECONDS: Final = 30.0
MANY_FAIL: Final = 0.2
NOISY_SHARE: Final = 2.0


@dataclass(frozen=True, slots=True)
class Attention:
    """Something that an operator should look at, in a sentence, and where to look."""

    sentence: str
    path: str
    query: dict[str, object]
    is_bad: bool = False


@needs(Role.VIEWER)
async def show(visit: Visit) -> Response:
    """Everything at once, in figures that cost the same whatever the history."""
    database = visit.parts.database
    begun = await series.begun_at(database)
    span = charts.span_of(visit, begun)
    now, standings, busiest, beats = await asyncio.gather(
        figures.read(database),
        board.read(database, limit=LIMIT),
        series.busiest(database, span),
        heartbeats.page(database, limit=100),
    )
    floods = [one.id for one in standings if one.backlog > board.FEW][:FLOODS_MOST]
    told = await series.read(database, span, [EVERYBODY, *busiest.most, *busiest.failing, *floods], begun=begun)
    workers = [beat for beat in beats.heartbeats if beat.left_at is None and beat.kind == "worker"]
    slugs = {one.id: one.slug for one in await directory.find_all(database, told.companies[: charts.SHARED_BY])}
    total = told.total(EVERYBODY)
    return visit.page(
        "overview.html",
        span=span,
        spans=SPANS,
        figures=now,
        status=200,
        total=total,
        seconds=told.seconds,
        hands=sum(worker.concurrency * worker.processes for worker in workers if not _is_silent(worker)),
        up=[worker for worker in workers if not _is_silent(worker) and not is_of_jobs(worker)],
        of_jobs=[worker for worker in workers if not _is_silent(worker) and is_of_jobs(worker)],
        silent=[worker for worker in workers if _is_silent(worker)],
        fairness=_fairness(standings),
        attention=list(_attention(now, standings, workers, told)),
        standings=[one for one in standings if one.backlog or one.in_flight][:8],
        companies=len(standings),
        shares=charts.shares(told, slugs),
        waits=_waits(told, standings),
        outcomes=charts.outcomes(told.starts, told.of(EVERYBODY)),
    )


def is_of_jobs(worker: Heartbeat) -> bool:
    """Whether it takes its turns elsewhere: it is heard of, and holds no lease on tasks."""
    return worker.kind == "worker" and worker.processes == 0


def _is_silent(worker: Heartbeat) -> bool:
    return worker.age_seconds > SILENT_SECONDS


def _fairness(standings: Sequence[Standing]) -> float | None:
    """Jain's index of what companies have of their fair share, of those that want more and may have it: 1 when all have
    the same part. Who asks for little is served, and nobody's loss."""
    wanting = [one for one in standings if one.backlog and one.state != "at its limit"]
    shares = [one.in_flight / one.fair_share for one in wanting if one.fair_share]
    squares = sum(share * share for share in shares)
    return sum(shares) ** 2 / (len(shares) * squares) if len(shares) > 1 and squares else None


def _waits(told: Series, standings: Sequence[Standing]) -> Chart:
    """Those whose backlog is large beside those whose is not: a flood should be felt by whoever makes it."""
    busy = told.companies
    half = sum(told.total(company_id).attempts for company_id in busy) / max(len(busy), 1) * NOISY_SHARE
    backlogs = {one.id: one.backlog for one in standings}
    noisy = [id for id in busy if told.total(id).attempts > half or backlogs.get(id, 0) > board.FEW]
    of_noisy = told.together(noisy)
    of_quiet = [everybody.without(some) for everybody, some in zip(told.of(EVERYBODY), of_noisy, strict=True)]
    lines = [
        Line(name, look, [step.wait_seconds(0.95) for step in steps])
        for name, look, steps in (("quiet companies", "median", of_quiet), ("companies that flood", "high", of_noisy))
        if added(steps).attempts
    ]
    return Chart("Wait for a turn, 95 of 100 at most", "seconds", told.starts, lines)


def _attention(
    now: Figures, standings: Sequence[Standing], workers: Sequence[Heartbeat], told: Series
) -> Iterator[Attention]:
    waiting = now.tasks_by_status[Status.PENDING]
    if waiting and all(_is_silent(worker) or is_of_jobs(worker) for worker in workers):
        yield Attention(f"{count(waiting)} tasks wait, and no worker is up.", "/workers", {}, is_bad=True)
    for worker in workers:
        if _is_silent(worker):
            yield Attention(
                f"Worker {worker.name} was not heard of for {length(worker.age_seconds)}.", "/workers", {}, True
            )
    for one in standings:
        total = told.total(one.id)
        if one.paused and one.backlog:
            yield Attention(f"{one.name} is paused, and {_waits_of(one)}.", f"/companies/{one.slug}", {})
        elif one.max_in_flight is not None and one.backlog and one.in_flight >= one.max_in_flight:
            yield Attention(
                f"{one.name} is at its limit of {one.max_in_flight} at once, and {_waits_of(one)}.",
                f"/companies/{one.slug}",
                {},
            )
        if total.failed and total.failed >= MANY_FAIL * total.attempts:
            yield Attention(
                f"{count(total.failed)} of {count(total.attempts)} attempts of {one.name} failed for good.",
                "/tasks",
                {"company": one.slug, "status": "failed"},
                is_bad=True,
            )


def _waits_of(one: Standing) -> str:
    told = count(one.backlog, one.backlog_is_exact)
    return f"{told} of its tasks {'wait' if one.backlog != 1 else 'waits'}"


PAGES = (("GET", "/", show),)
