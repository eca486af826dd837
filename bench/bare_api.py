"""The least that an API can be which stores a task: one FastAPI route that inserts one row, for bench/posts.py.

Run as `python -m bench.bare_api URL PORT`, by uvicorn in the same way as `taketurns api`.
"""

from __future__ import annotations

import json
import sys
import uuid
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import uvicorn
from fastapi import FastAPI
from psycopg_pool import AsyncConnectionPool
from pydantic import BaseModel

TABLE = """
create table bare_tasks (
    id uuid primary key,
    company text not null,
    type text not null,
    payload json not null,
    created_at timestamptz not null default clock_timestamp()
)
"""
_INSERT = "insert into bare_tasks (id, company, type, payload) values (%s, %s, %s, %s) returning created_at"


class NewTask(BaseModel):
    type: str
    payload: dict[str, Any]


class Task(NewTask):
    id: uuid.UUID
    company: str
    created_at: Any


def create_app(url: str) -> FastAPI:
    pool = AsyncConnectionPool(url, min_size=10, max_size=10, open=False, kwargs={"autocommit": True})

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        async with pool:
            yield

    app = FastAPI(lifespan=lifespan)

    @app.post("/companies/{company}/tasks", status_code=201)
    async def create_task(company: str, new: NewTask) -> Task:
        task_id = uuid.uuid4()
        async with pool.connection() as connection:
            cursor = await connection.execute(_INSERT, (task_id, company, new.type, json.dumps(new.payload)))
            ((created_at,),) = await cursor.fetchall()
        return Task(id=task_id, company=company, created_at=created_at, type=new.type, payload=new.payload)

    @app.get("/ready")
    async def ready() -> str:
        return "ready"

    return app


if __name__ == "__main__":
    uvicorn.run(create_app(sys.argv[1]), port=int(sys.argv[2]), log_config=None, access_log=False, server_header=False)
