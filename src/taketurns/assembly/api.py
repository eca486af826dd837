"""The API, put together from its parts as settings say, with a worker's pass to run in its process."""

from __future__ import annotations

import hashlib
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from importlib import metadata
from typing import Final

from fastapi import FastAPI
from sqlalchemy import make_url

from taketurns import telemetry
from taketurns.api.application import create_api
from taketurns.api.guard import Guard
from taketurns.assembly.application import PASS_TASKS, Taketurns, load_application
from taketurns.assembly.brokers import close, make_broker, make_carrying, make_ticking
from taketurns.assembly.jobs import make_job_broker, warn
from taketurns.assembly.keys import make_stamp, make_tokens
from taketurns.companies.keyring import KeyRing
from taketurns.companies.quotas import Tally
from taketurns.companies.wrong_keys import WrongKeys
from taketurns.dashboard import Dashboard
from taketurns.engine.rate import Rate
from taketurns.engine.registry import Registry
from taketurns.engine.task import PassReport
from taketurns.history.rollups import Attempts, RollUp
from taketurns.settings import Settings
from taketurns.storage.budgets import PostgresBudgets
from taketurns.storage.database import Database
from taketurns.worker import run_pass

API_NAME: Final = "taketurns-api"
REQUESTED: Final = "requested"  # the heartbeat of passes that somebody asks for, and nobody misses


def load_api(settings: Settings) -> FastAPI:
    """The API for the application that the settings name; it is closed with the API."""
    application = load_application(settings.app)
    return build_api(application.adopt(settings), application.registry, application=application)


def build_api(settings: Settings, registry: Registry, *, application: Taketurns | None = None) -> FastAPI:
    """The API for the handlers of the registry. Its connections are opened and closed by its lifespan."""
    broker = make_broker(settings, name=API_NAME, walled=True)
    job_broker = None if settings.redis_url is None else make_job_broker(settings, name=API_NAME)

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        if broker.database.companies is None:
            telemetry.logger("api").warning(telemetry.Event.API_WITHOUT_WALLS)
        await broker.database.open()
        if job_broker is not None:
            await warn(job_broker)
        try:
            yield
        finally:
            if application is not None:
                await application.close()
            if job_broker is not None:
                await job_broker.server.close()
            await close(broker)

    async def process_pass(*, limit: int | None = None) -> PassReport:
        return await run_pass(
            broker=broker,
            registry=registry,
            ticking=make_ticking(broker),
            attempts=Attempts(broker.database),
            queues=settings.queues,
            limit=limit or PASS_TASKS,
            concurrency=settings.concurrency,
            beat_seconds=settings.beat_seconds,
            stale_after_seconds=settings.stale_after_seconds,
            duties=[Tally(broker.database), make_carrying(broker), RollUp(broker.database)],
            rescues=False,
            comes_again=False,
            name=REQUESTED,
            budgets=PostgresBudgets(broker.database),
        )

    version = metadata.version("taketurns")
    guard = _make_guard(settings, broker.database)
    dashboard = Dashboard(
        database=broker.database,
        keyring=guard.keyring,
        asks_for_keys=guard.asks_for_keys,
        on_loopback_only=guard.on_loopback_only,
        wrong_keys=guard.wrong_keys,
        prefix=settings.dashboard_path,
        version=version,
        told=_told(settings),
    )
    api = create_api(
        database=broker.database,
        broker=broker,
        job_broker=job_broker,
        registry=registry,
        process_pass=process_pass,
        version=version,
        cursor_secret=_cursor_secret(settings),
        guard=guard,
        lifespan=lifespan,
        on_leaving=dashboard.leave,
    )
    dashboard.mount(api)
    return api


def _told(settings: Settings) -> dict[str, str]:
    """What the dashboard shows of the settings; none of them is a secret."""
    return {
        "Completed tasks are kept": f"{settings.keep_completed_days:g} days",
        "Failed tasks are kept": f"{settings.keep_failed_days:g} days",
        "Cancelled tasks are kept": f"{settings.keep_cancelled_days:g} days",
        "Completed jobs are kept": f"{settings.keep_completed_jobs_hours:g} hours",
        "Failed and cancelled jobs are kept": f"{settings.keep_stopped_jobs_days:g} days",
        "Idempotency keys are kept": f"{settings.idempotency_hours:g} hours",
        "Queues that workers serve, unless told otherwise": ", ".join(settings.queues),
        "Schema": settings.schema_name,
        "Jobs": "in Redis" if settings.redis_url else "not set up",
        "Authentication": settings.authentication,
    }


def _cursor_secret(settings: Settings) -> bytes:
    """The same in every API process of one cell, whatever address and password it comes by.

    It keeps clients from building on what is in a cursor. It guards nothing: a cursor names a place in a list that its
    bearer may read.
    """
    cell = f"{make_url(settings.database_url).database}.{settings.schema_name}"
    return hashlib.sha256(f"cursors of {cell}".encode()).digest()


def _make_guard(settings: Settings, database: Database) -> Guard:
    """What the API asks its callers for."""
    token, wrong = settings.metrics_token, settings.wrong_keys_per_minute
    return Guard(
        keyring=KeyRing(database, stamp=make_stamp(settings)),
        tokens=make_tokens(settings, database),
        asks_for_keys=settings.authentication == "on",
        on_loopback_only=settings.authentication == "off",
        metrics_token=None if token is None else token.get_secret_value().encode(),
        processes=settings.api_processes,
        wrong_keys=None if wrong == 0 else WrongKeys(Rate(wrong, seconds=60, burst=wrong)),
    )
