"""A worker process that is measured: `python -m bench.lane_worker '{"url": …, "tasks": 20000}'`.

With `tasks` it runs so many that do nothing, settles them, and prints how long that took from its first handler on.
Otherwise it runs until it is told to stop, and prints when each handler began, on this machine's monotonic clock.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
from typing import Any

from bench.lanes import CLAIM, CONCURRENCY, open_broker
from taketurns.engine.registry import Registry
from taketurns.worker import Worker, process


async def serve(url: str, tasks: int | None = None) -> None:
    began: list[float] = []
    have_run = asyncio.Event()

    async def nothing() -> None:
        if tasks is None:
            print(time.monotonic(), flush=True)
            return
        if not began:
            began.append(time.monotonic())
        ran[0] += 1
        if ran[0] == tasks:
            have_run.set()

    ran = [0]
    registry = Registry()
    registry.add(nothing)
    async with open_broker(url) as broker:
        worker = Worker(broker=broker, registry=registry, concurrency=CONCURRENCY, batch=CLAIM)
        if tasks is None:
            await asyncio.gather(_say_when_ready(worker), process.work_until_told(worker))
            return
        running = asyncio.create_task(worker.run())
        await have_run.wait()
        await worker.settler.flush()
        print(json.dumps({"seconds": time.monotonic() - began[0], "completed": worker.settler.tally.completed}))
        worker.stop()
        await running


async def _say_when_ready(worker: Worker) -> None:
    await worker.lease.taken()
    print("ready", flush=True)


if __name__ == "__main__":
    options: dict[str, Any] = json.loads(sys.argv[1])
    process.run(lambda: serve(**options))
