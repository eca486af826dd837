"""`taketurns workers`: who there is, and an operator's order to one of them."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from contextlib import AsyncExitStack
from uuid import UUID

import typer

from taketurns.assembly.brokers import close, make_broker
from taketurns.cli.actor import actor
from taketurns.cli.database import with_database
from taketurns.engine import durations, orders
from taketurns.engine.broker import Broker
from taketurns.engine.errors import TaketurnsError
from taketurns.engine.lease import Kind
from taketurns.engine.orders import Wanted
from taketurns.history import heartbeats
from taketurns.history.heartbeats import Heartbeat
from taketurns.settings import Settings
from taketurns.storage import audit
from taketurns.storage.audit import Action

SHOWN = 100
NAME = "taketurns-command"


def show(settings: Settings, *, as_json: bool) -> int:
    """Print the workers and passes that began last."""
    try:
        page = with_database(settings, lambda database: heartbeats.page(database, limit=SHOWN))
    except TaketurnsError as error:
        typer.echo(str(error), err=True)
        return 1
    _tell(page.heartbeats, as_json=as_json)
    return 0


def drain(settings: Settings, worker: str) -> int:
    """Have a worker take no more turns; 1 when it takes no orders."""
    done = "told to drain: it takes no more turns, and stays until it is resumed or stopped"
    return _order(settings, worker, Wanted.DRAIN, Action.DRAIN_WORKER, done=done)


def resume(settings: Settings, worker: str) -> int:
    """Have a worker take turns again; 1 when it takes no orders."""
    return _order(settings, worker, Wanted.RUN, Action.RESUME_WORKER, done="told to take turns")


def stop(settings: Settings, worker: str) -> int:
    """End a worker in good order; 1 when it takes no orders."""
    done = "told to stop: it ends once what it runs has ended"
    return _order(settings, worker, Wanted.STOP, Action.STOP_WORKER, done=done)


def _order(settings: Settings, worker: str, wanted: Wanted, action: Action, *, done: str) -> int:
    try:
        processes = asyncio.run(_give(settings, _named(worker), wanted, action))
    except TaketurnsError as error:
        typer.echo(str(error), err=True)
        return 1
    typer.echo(done if processes == 1 else f"{processes} processes {done}")
    return 0


async def _give(settings: Settings, worker: UUID | str, wanted: Wanted, action: Action) -> int:
    async with AsyncExitStack() as stack:
        broker = make_broker(settings, name=NAME, pool_size=2)
        await broker.database.open()
        stack.push_async_callback(close, broker)
        brokers: list[Broker] = [broker]
        if settings.redis_url is not None:
            from taketurns.assembly import jobs  # noqa: PLC0415  not for who has no jobs

            brokers.append(await stack.enter_async_context(jobs.open_job_broker(settings, name=NAME, pool_size=1)))
        processes = await orders.give(brokers, worker, wanted)
        async with broker.database.transaction() as connection:
            schema, details = broker.database.schema, {"processes": processes}
            await audit.write(connection, schema, actor(), action, target=worker, details=details)
        return processes


def _named(worker: str) -> UUID | str:
    try:
        return UUID(worker)
    except ValueError:
        return worker


def _tell(found: Sequence[Heartbeat], *, as_json: bool) -> None:
    if as_json:
        typer.echo(json.dumps([_shown(one) for one in found], indent=2))
        return
    for one in found:
        typer.echo(f"{one.id}  {one.name}  {_does(one)}, heard of {durations.told(one.age_seconds)} ago")


def _does(one: Heartbeat) -> str:
    if one.left_at is not None:
        return "left"
    if one.kind != Kind.WORKER:
        return one.kind
    waits = one.wanted is not None and orders.MEANT[Wanted(one.wanted)] != one.state
    return f"{one.state}, told to {one.wanted}" if waits else str(one.state)


def _shown(one: Heartbeat) -> dict[str, object]:
    return {
        "id": str(one.id),
        "name": one.name,
        "kind": one.kind,
        "host": one.host,
        "processes": one.processes,
        "wanted": one.wanted,
        "state": one.state,
        "leftAt": one.left_at and one.left_at.isoformat(),
        "ageSeconds": round(one.age_seconds, 3),
    }
