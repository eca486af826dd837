"""Many claimers at once decide as one would: each claim takes the turns that the rule tells of the state it found."""

from __future__ import annotations

import math
import random
import threading
from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import psycopg
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from taketurns.engine import turns
from taketurns.engine.turns import Company, Rotation, Turn
from taketurns.storage.database import Row
from tests.brokers.places import exact
from tests.brokers.postgres.cell import PostgresCell
from tests.brokers.postgres.connections import other_connection
from tests.effort import examples
from tests.engine.fairness import spread

QUEUES = ["default", "bulk"]
CLAIMERS = [1, 4, 16]

# A claim that writes down, under the cell's lock, what it found and what it took. With `settle_in_turn` and
# `enqueue_in_turn`, which wait for that lock, nothing moves between its look and its claim.
WATCHED = """
create table if not exists watched (
    number bigint generated always as identity primary key, queues text[], batch integer,
    companies jsonb, rotations jsonb, waiting jsonb, places jsonb, over_dead_rows boolean, taken jsonb, held jsonb);

create or replace function claim_watched(
    for_worker uuid, in_queues text[], batch integer, with_token uuid, skipped_types text[]
) returns table (company_id uuid, task_id uuid, queue text) language plpgsql volatile as $$
#variable_conflict use_column
declare
    entry bigint;
    of_companies uuid[];
    of_tasks uuid[];
    of_queues text[];
begin
    perform pg_advisory_xact_lock(cell_lock());
    insert into watched (queues, batch, companies, rotations, waiting, places, over_dead_rows)
    select in_queues, batch,
        (select jsonb_agg(jsonb_build_array(c.id, c.weight, c.max_in_flight, c.paused,
            (select count(*) from processing_tasks p where p.company_id = c.id))) from companies c),
        (select jsonb_agg(jsonb_build_array(r.queue, r.place)) from rotations r),
        (select jsonb_agg(jsonb_build_array(p.queue, p.company_id, p.count)) from (
            select p.queue, p.company_id, count(*) from pending_tasks p group by p.queue, p.company_id) p),
        (select jsonb_agg(jsonb_build_array(ltrim(t.queue, '!'), t.company_id, t.place)) from turns t),
        exists (select from looks l where l.has_old_snapshot)
    returning number into entry;
    select array_agg(c.company_id), array_agg(c.task_id), array_agg(c.queue) into of_companies, of_tasks, of_queues
    from claim(for_worker, in_queues, batch, with_token, skipped_types) c
    where c.task_id is not null;
    update watched w
    set taken = (
            select jsonb_agg(jsonb_build_array(t.queue, t.company))
            from unnest(of_queues, of_companies) t(queue, company)),
        held = (select jsonb_object_agg(p.company_id, p.count) from (
            select p.company_id, count(*) from processing_tasks p group by p.company_id) p)
    where w.number = entry;
    return query select * from unnest(of_companies, of_tasks, of_queues);
end $$;

create or replace function settle_in_turn(
    uuid[], uuid[], uuid[], text[], text[], text[], double precision[]
) returns setof uuid language plpgsql volatile as $$
begin
    perform pg_advisory_xact_lock(cell_lock());
    return query select * from settle($1, $2, $3, $4, $5, $6, $7);
end $$;
"""

by_many_threads = settings(
    max_examples=examples(4), deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)

weights = st.one_of(st.integers(1, 5), st.integers(1, 100))


@dataclass(frozen=True)
class Watched:
    """One claim: what it found, what it took, and what was held after it.

    On a machine so busy that claimers wait for seconds, their own snapshots are old ones: `is_over_dead_rows`, and the
    order is near the rule's (decision 0007).
    """

    queues: list[str]
    batch: int
    companies: dict[str, Company]
    rotations: dict[str, Rotation]
    is_over_dead_rows: bool
    taken: list[Turn]
    held: dict[str, int]


def watched(cell: PostgresCell) -> list[Watched]:
    """What was written down, in the order in which it happened."""
    return [_watched(*row) for row in cell.rows("select * from watched order by number")]


def _watched(
    _: int,
    queues: list[str],
    batch: int,
    companies: Sequence[Any],
    places_of_rotations: Sequence[Any] | None,
    waiting: Sequence[Any] | None,
    places: Sequence[Any] | None,
    is_over_dead_rows: bool,
    taken: Sequence[Any] | None,
    held: dict[str, int] | None,
) -> Watched:
    rotations = {queue: Rotation() for queue in QUEUES}
    for queue, place in places_of_rotations or ():
        rotations[queue].place = exact(place)
    for queue, company, count in waiting or ():
        rotations[queue].waiting[company] = count
    for queue, company, place in places or ():
        rotations[queue].places[company] = exact(place)
    return Watched(
        queues,
        batch,
        {name: Company(weight, hands, most, paused) for name, weight, most, paused, hands in companies},
        rotations,
        is_over_dead_rows,
        [Turn(queue, company) for queue, company in taken or ()],
        held or {},
    )


def run_claimers(
    cell: PostgresCell, count: int, seed: int, step: Callable[[psycopg.Connection[Row], random.Random], None]
) -> None:
    """Take steps on `count` connections at once, 48 in all."""
    start = threading.Barrier(count)

    def claimer(place: int) -> None:
        chance = random.Random(f"{seed} {place}")
        with other_connection(cell) as connection:
            start.wait()
            for _ in range(48 // count):
                step(connection, chance)

    with ThreadPoolExecutor(count) as threads:
        list(threads.map(claimer, range(count)))


@pytest.fixture
def watched_cell(bare_cell: PostgresCell) -> PostgresCell:
    bare_cell.connection.execute(WATCHED)
    return bare_cell


def clear(cell: PostgresCell) -> None:
    cell.clear()
    cell.connection.execute("truncate watched")


@pytest.mark.parametrize("claimers", CLAIMERS)
@by_many_threads
@given(
    st.lists(st.tuples(weights, st.none() | st.integers(1, 4)), min_size=1, max_size=8),
    st.integers(1, 30),
    st.integers(0, 1_000_000),
)
def test_every_claim_takes_the_turns_of_the_rule(
    watched_cell: PostgresCell, claimers: int, companies: list[tuple[int, int | None]], largest: int, seed: int
) -> None:
    """Tasks finish and come in at random meanwhile. Musts 1 to 4 and 8: what holds of the rule holds of the claim."""
    cell = watched_cell
    clear(cell)
    names = [f"c{place}" for place in range(len(companies))]
    for name, (weight, most) in zip(names, companies, strict=True):
        cell.add_company(name, weight=weight, max_in_flight=most)
        for queue in QUEUES:
            cell.submit(name, 40, queue=queue)

    def step(connection: psycopg.Connection[Row], chance: random.Random) -> None:
        batch = chance.randint(1, largest)
        queues = chance.sample(QUEUES, chance.randint(1, 2))
        taken = cell.take(batch, queues=queues, on=connection, function="claim_watched")
        cell.finish(chance.sample(taken, len(taken) // 2), on=connection, function="settle_in_turn")
        with connection.transaction():
            connection.execute("select pg_advisory_xact_lock(cell_lock())")
            cell.submit(chance.choice(names), chance.randint(1, 10), queue=chance.choice(QUEUES), on=connection)

    run_claimers(cell, claimers, seed, step)
    seen = watched(cell)
    assert len(seen) == 48
    for claim in seen:
        told = turns.take(claim.companies, claim.rotations, claim.queues, claim.batch)
        assert claim.is_over_dead_rows or told == claim.taken
    assert cell.contradictions() == []


@pytest.mark.parametrize("claimers", CLAIMERS)
@by_many_threads
@given(st.lists(weights, min_size=2, max_size=8), st.integers(1, 25), st.integers(0, 1_000_000))
def test_turns_by_weight_keep_in_step_across_claimers(
    watched_cell: PostgresCell, claimers: int, weighted: list[int], largest: int, seed: int
) -> None:
    """Must 1, of companies that have tasks waiting all along and are below their share."""
    cell = watched_cell
    clear(cell)
    cell.add_hoarder(1_000)
    by_id = {str(cell.add_company(f"c{place}", weight=weight)): weight for place, weight in enumerate(weighted)}
    for place in range(len(weighted)):
        cell.submit(f"c{place}", 1_000)

    def step(connection: psycopg.Connection[Row], chance: random.Random) -> None:
        taken = cell.take(chance.randint(1, largest), on=connection, function="claim_watched")
        cell.finish(chance.sample(taken, len(taken)), on=connection)

    run_claimers(cell, claimers, seed, step)
    assert spread([turn.company for claim in watched(cell) for turn in claim.taken], by_id) <= 2


@pytest.mark.parametrize("claimers", CLAIMERS)
def test_limits_hold_across_queues_and_claimers(watched_cell: PostgresCell, claimers: int) -> None:
    """Must 4. Tasks are settled and released freely meanwhile."""
    cell = watched_cell
    clear(cell)
    most = {str(cell.add_company(f"c{limit}", max_in_flight=limit)): limit for limit in (1, 2, 5)}
    for limit in most.values():
        for queue in QUEUES:
            cell.submit(f"c{limit}", 100, queue=queue)

    def step(connection: psycopg.Connection[Row], chance: random.Random) -> None:
        queues = chance.sample(QUEUES, 2)
        taken = cell.take(chance.randint(1, 10), queues=queues, on=connection, function="claim_watched")
        split = chance.randint(0, len(taken))
        cell.finish(taken[:split], on=connection)
        cell.give_back(taken[split:], on=connection)

    run_claimers(cell, claimers, 5, step)
    seen = watched(cell)
    assert all(count <= most[company] for claim in seen for company, count in claim.held.items())
    assert Counter(turn.company for claim in seen for turn in claim.taken).keys() == most.keys()


@pytest.mark.parametrize("round_", range(5))
def test_a_limit_is_not_exceeded_by_claims_that_begin_together(bare_cell: PostgresCell, round_: int) -> None:
    """Must 4, without anybody watching."""
    for slug in ("one", "two", "three"):
        bare_cell.add_company(slug, max_in_flight=3)
        for queue in QUEUES:
            bare_cell.submit(slug, 50, queue=queue)

    def step(connection: psycopg.Connection[Row], chance: random.Random) -> None:
        bare_cell.take(chance.randint(1, 3), queues=chance.sample(QUEUES, 1), on=connection)

    run_claimers(bare_cell, 16, round_, step)
    assert bare_cell.rows("select count(*) from processing_tasks group by company_id") == [(3,)] * 3


@pytest.mark.parametrize("claimers", CLAIMERS)
@pytest.mark.parametrize("hands", [4, 16])
def test_long_tasks_hold_no_more_than_their_share_across_claimers(
    watched_cell: PostgresCell, claimers: int, hands: int
) -> None:
    """Must 2. The slow company never finishes anything; the fast ones do at once."""
    cell = watched_cell
    clear(cell)
    slow = str(cell.add_company("slow"))
    cell.submit("slow", 500)
    for name in ("fast", "faster"):
        cell.add_company(name)
        cell.submit(name, 1_000)
    free = threading.Semaphore(hands)

    def step(connection: psycopg.Connection[Row], chance: random.Random) -> None:
        if not free.acquire(timeout=0.01):
            return
        taken = cell.take(1, on=connection, function="claim_watched")
        ended = [turn for turn in taken if turn.company != "slow"]
        cell.finish(ended, on=connection, function="settle_in_turn")
        if ended:
            free.release()

    run_claimers(cell, claimers, 5, step)
    for claim in watched(cell):
        if [turn.company for turn in claim.taken] == [slow]:
            assert claim.held[slow] <= math.ceil(Fraction(sum(claim.held.values()), 3))
