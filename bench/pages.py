"""What each page of the dashboard costs the server, with a million tasks of ten thousand companies.

The pages are made in this process, one after another, by the application that serves them; what a browser adds is left
out. Tasks are of the last seven days, most of them of few companies.
"""

from __future__ import annotations

import asyncio
import statistics
from collections.abc import Sequence
from time import perf_counter
from typing import Final

import psycopg
from fastapi import FastAPI
from httpx2 import ASGITransport, AsyncClient

from bench import results
from bench.server import connect, described, measured_server
from taketurns.companies.keyring import KeyRing
from taketurns.companies.keys import Stamp
from taketurns.dashboard import Dashboard
from taketurns.storage import schema
from taketurns.storage.database import Database

TASKS: Final = 1_000_000
COMPANIES: Final = 10_000
ROUNDS: Final = 20
BAR_MILLISECONDS: Final = 300
TRIAL: Final = (20_000, 200, 3)

SEED: Final = (
    """
    insert into companies (id, slug, name, weight)
    select (lpad(to_hex(1700000000000 + n), 12, '0') || '70008000000000000000')::uuid, 'company-' || n, 'Company ' || n,
        1 + n %% 3
    from generate_series(1, %(companies)s) n
    """,
    """
    insert into task_types (name, payload_schema, queue, priority, max_retries, published_at)
    select 'work_' || n, '{}', 'default', 5, 3, now() from generate_series(1, 20) n
    """,
    """
    insert into workers (id, name, host, version, queues, types, concurrency, started_at, beat_at)
    select gen_random_uuid(), 'worker-' || n, 'host-' || n, '0.1.0', '{default}', '{work_1}', 50, now(), now()
    from generate_series(1, 10) n
    """,
    """
    insert into heartbeats (name, id, kind, comes_again, host, version, queues, types, concurrency, started_at, beat_at)
    select name, id, 'worker', true, host, version, queues, 1, concurrency, started_at, beat_at from workers
    """,
    """
    create temporary table made as
    select c.id as company_id, t.at,
        (lpad(to_hex((extract(epoch from t.at) * 1000)::bigint), 12, '0') || '7000'
            || '8' || lpad(to_hex(t.n), 15, '0'))::uuid as id,
        t.n, t.place
    from (
        select n, now() - (1 - n::float8 / %(tasks)s) * interval '7 days' as at,
            row_number() over (order by n desc) as place,
            'company-' || 1 + floor(%(companies)s * power(random(), 3))::integer as slug
        from generate_series(1, %(tasks)s) n
    ) t
    join companies c on c.slug = t.slug
    """,
    """
    insert into tasks (company_id, id, type, queue, priority, run_after, max_retries, payload, created_at, tags,
        started_at, finished_at, stopped_as, worker_id, error, error_fingerprint)
    select m.company_id, m.id, 'work_' || 1 + m.n %% 20, 'default', 5, m.at, 3, '{"value": 1}', m.at,
        case when m.n %% 10 = 0 then '{eu}'::text[] end,
        case when m.place > %(open)s then m.at + interval '1 s' end,
        case when m.place > %(open)s then m.at + interval '2 s' end,
        case when m.place > %(open)s and m.n %% 40 = 0 then 'failed'
            when m.place > %(open)s and m.n %% 97 = 0 then 'cancelled' end,
        (select id from workers limit 1),
        case when m.place > %(open)s and m.n %% 40 = 0 then 'ValueError: the row has no price' end,
        case when m.place > %(open)s and m.n %% 40 = 0 then 'cause-' || m.n %% 7 end
    from made m
    """,
    "insert into task_tags (company_id, tag, task_id) select company_id, 'eu', id from tasks where tags is not null",
    """
    insert into pending_tasks (queue, company_id, priority, run_after, task_id, type)
    select t.queue, t.company_id, t.priority, t.run_after, t.id, t.type
    from tasks t join made m using (company_id, id) where m.place > 1000 and m.place <= %(open)s
    """,
    """
    insert into scheduled_tasks (company_id, task_id, queue, run_after, priority, type)
    select t.company_id, t.id, t.queue, now() + interval '1 day', t.priority, t.type
    from tasks t join made m using (company_id, id) where m.place > 500 and m.place <= 1000
    """,
    """
    insert into processing_tasks (company_id, task_id, queue, run_after, worker_id, claim_token, claimed_at, priority,
        type)
    select t.company_id, t.id, t.queue, t.run_after, (select id from workers order by name limit 1), gen_random_uuid(),
        now(), t.priority, t.type
    from tasks t join made m using (company_id, id) where m.place <= 500
    """,
    "select join_rotation(p.company_id, '{default}') from (select distinct company_id from pending_tasks) p",
    """
    insert into rollups (company_id, lane, seconds, starts_at, completed, retried, failed, waits)
    select m.company_id, 'tasks', s.seconds, date_bin(make_interval(secs => s.seconds), m.at, 'epoch'), count(*), 0,
        count(*) filter (where m.n %% 40 = 0), array_fill(0, array[18]) || count(*)::integer
    from made m cross join unnest(array[10, 60, 3600]) as s(seconds)
    where m.place > %(open)s and (s.seconds > 10 or m.at > now() - interval '1 hour')
        and (s.seconds < 3600 or m.at < date_bin('1 hour', now(), 'epoch'))
    group by 1, 3, 4
    """,
    """
    insert into rollups (company_id, lane, seconds, starts_at, completed, retried, failed, waits)
    select '00000000-0000-0000-0000-000000000000', 'tasks', r.seconds, r.starts_at, sum(r.completed), 0, sum(r.failed),
        array_fill(0, array[18]) || sum(r.completed)::integer
    from rollups r group by r.seconds, r.starts_at
    """,
    """
    insert into schedules (company_id, id, name, type, payload, queue, priority, max_retries, expression, time_zone,
        missed, paused, next_tick_at)
    select c.id, gen_random_uuid(), 'nightly', 'work_1', '{}', 'default', 5, 3, '0 3 * * *', 'Europe/Berlin', 'last',
        false, now() + interval '1 hour'
    from companies c
    """,
    """
    insert into audit_entries (id, actor_kind, actor_name, action, target, details)
    select (lpad(to_hex(1700000000000 + n), 12, '0') || '70008000000000000000')::uuid, 'operator', 'ada',
        'company.changed', gen_random_uuid()::text, '{}'
    from generate_series(1, %(companies)s) n
    """,
)
BUSIEST: Final = b"""
    select c.slug, t.id from tasks t join companies c on c.id = t.company_id
    where c.id = (select company_id from tasks group by company_id order by count(*) desc limit 1)
    order by t.id desc limit 1
"""
SPANS: Final = ("15m", "1h", "24h", "7d")
OF_ALL: Final = (
    *(f"/?span={span}" for span in SPANS),
    "/companies",
    "/companies?offset=5000",
    "/companies?q=99",
    "/tasks",
    "/tasks?status=failed",
    "/tasks?status=pending",
    "/tasks?type=work_7&since=24h",
    "/tasks?tag=eu",
    "/live",
    "/workers",
    "/schedules",
    "/failures",
    "/operations",
    "/settings",
    "/search?q=99",
    "/search?q={task}",
    "/tasks/new",
    "/schedules/new",
)
OF_ONE: Final = (
    *(f"/companies/{{company}}?span={span}" for span in SPANS),
    "/companies/{company}/tasks/{task}",
    "/tasks?company={company}",
    "/tasks?company={company}&status=failed&type=work_1",
    "/tasks?company={company}&tag=eu&status=completed",
    "/failures?company={company}",
    "/operations?company={company}",
    "/schedules?company={company}",
    "/settings?company={company}",
)


def seed(connection: psycopg.Connection, *, tasks: int, companies: int) -> None:
    """A cell that has worked for a week: a twentieth of its tasks waits, runs or is scheduled."""
    numbers = {"tasks": tasks, "companies": companies, "open": max(tasks // 20, 1_500)}
    connection.execute("select setseed(0.42)")
    for statement in SEED:
        connection.execute(statement.encode(), numbers)
    connection.execute("vacuum (analyze)")
    connection.execute("checkpoint")


async def measure(url: str, paths: Sequence[str], *, rounds: int) -> dict[str, list[float]]:
    """Milliseconds of every look at every page, in turn, after one that is not counted."""
    database = Database(url, pool_size=4)
    await database.open()
    stamp = Stamp("bench", (b"no key is ever looked at here",))
    dashboard = Dashboard(database=database, keyring=KeyRing(database, stamp=stamp), asks_for_keys=False, version="0")
    app = FastAPI()
    dashboard.mount(app)
    taken: dict[str, list[float]] = {path: [] for path in paths}
    try:
        async with AsyncClient(transport=ASGITransport(app), base_url="http://localhost") as client:
            for number in range(rounds + 1):
                for path in paths:
                    began = perf_counter()
                    answer = await client.get(f"/dashboard{path}")
                    if answer.status_code != 200:
                        raise RuntimeError(f"{path} answered {answer.status_code}")
                    if number:
                        taken[path].append((perf_counter() - began) * 1000)
    finally:
        await database.close()
    return taken


def run(*, small: bool, command: str) -> None:
    """Look at every page of all companies, and at those of the company that has most tasks."""
    tasks, companies, rounds = TRIAL if small else (TASKS, COMPANIES, ROUNDS)
    with measured_server() as server:
        url = server.create_database("pages")
        schema.upgrade(url)
        with connect(url) as connection:
            seed(connection, tasks=tasks, companies=companies)
            ((slug, task_id),) = connection.execute(BUSIEST).fetchall()
        names = {"company": slug, "task": task_id}
        paths = [path.format_map(names) for path in (*OF_ALL, *OF_ONE)]
        taken = asyncio.run(measure(url, paths, rounds=rounds))
        rows = [
            [f"`{shape}`", f"{statistics.median(taken[path]):.0f}", f"{max(taken[path]):.0f}"]
            for shape, path in zip((*OF_ALL, *OF_ONE), paths, strict=True)
        ]
        table = results.table(["page", "p50, ms", "worst, ms"], rows)
        if small:
            print(table)
            return
        worst = max(max(times) for times in taken.values())
        results.record(
            f"Pages of the dashboard, with {tasks:,} tasks of {companies:,} companies",
            command=command,
            machine=described(server),
            body=f"{table}\n\nTime of the server to make the page, {rounds} looks each, in turn; the company is the one"
            f" with most tasks. Bar: < {BAR_MILLISECONDS} ms: {'met' if worst < BAR_MILLISECONDS else 'not met'}.",
        )
