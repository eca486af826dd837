-- The place of the `ahead`-th turn after a place, for a company of this weight. A round is 32768 units long, and a company
-- of weight w has its turns at (n - 1/2) / w rounds for every whole n, rounded down to a unit. That is exact: two places
-- of weights up to 100 that differ at all are 1 / 19800 of a round apart, more than a unit, so units are ordered as
-- places are, and tell each of them from every other. See decisions/0010 and 0021.

create or replace function turn_place(after bigint, weight integer, ahead integer) returns bigint
language sql immutable
as $$
    select after - after % 32768
        + (2 * ((2 * (after % 32768 + 1) * weight + 32768) / 65536 + ahead) - 1) * 32768 / (2 * weight)
$$;

-- How many turns of a company of this weight come behind the place `after`, as far as `sight`.
create or replace function turns_between(after bigint, sight bigint, weight integer) returns bigint
language sql immutable
as $$
    select greatest(0, (2 * (sight - after + after % 32768 + 1) * weight + 32767) / 65536
        - (2 * (after % 32768 + 1) * weight + 32768) / 65536)
$$;

-- Put a company into the rotation of the queues where it has no line yet: a newcomer's turn comes at the place that the
-- rotation has reached, as far as is known here. If it has moved on meanwhile, the turn is late, and taken at once.
-- Whoever makes a company's work claimable calls this in the same transaction. It takes the company's lock, shared,
-- until that transaction ends: see company_lock. A company's first line in a queue that another transaction keeps
-- uncommitted is waited for, but for no longer than this function's timeout. A company that is gone does not come back
-- with the tasks that it left: see delete_company.sql.
-- Lives on lines_pkey, rotations_pkey and companies_pkey.

create or replace function join_rotation(of_company uuid, in_queues text[]) returns void
language plpgsql volatile
set search_path from current
set lock_timeout = '2s'
as $$
declare
    joined text[];
begin
    perform pg_advisory_xact_lock_shared(company_lock(current_schema()::text, of_company));
    if not exists (
        select from unnest(in_queues) as q(queue)
        where not exists (select from lines l where l.company_id = of_company and l.queue = q.queue))
    then
        return;  -- the usual case: while the lock is held, no line that was seen leaves
    end if;
    with joining as (
        insert into lines (company_id, queue)
        select distinct of_company, q.queue from unnest(in_queues) as q(queue)
        where exists (select from companies c where c.id = of_company)
        order by q.queue
        on conflict do nothing
        returning queue
    )
    select array_agg(j.queue) into joined from joining j;
    if joined is not null then
        -- After its lines: a company's role sees how far the rotation is only of queues where the company stands.
        insert into turns (queue, place, company_id)
        select j.queue, place_reached(j.queue), of_company from unnest(joined) as j(queue)
        on conflict do nothing;
    end if;
end
$$;

-- The place that the rotation of a queue has reached.
create or replace function place_reached(in_queue text) returns bigint
language sql stable
set search_path from current
as $$ select coalesce((select r.place from rotations r where r.queue = in_queue order by r.place desc limit 1), 0) $$;

-- Let companies leave the rotation of a queue: of those that were served less often than it was their turn, those whose
-- next place the rotation has passed, if there is no work, or none that may be done. Answers how many were looked at, at
-- most `most`: each takes a lock, and the server's table of them is small. Who is about to join keeps its turn: see
-- company_lock.
-- Safe because it runs under the cell's lock. Lives on turns_pkey, pending_tasks_pkey and lines_pkey.
create or replace function leave_rotation(
    in_queue text,
    companies uuid[],
    places bigint[],
    turns integer[],
    served integer[],
    reached bigint,
    most integer
) returns integer
language plpgsql volatile
set search_path from current
as $$
declare
    idle_companies uuid[];
    idle_places bigint[];
begin
    select array_agg(i.company_id), array_agg(i.place) into idle_companies, idle_places
    from (
        select i.company_id, i.place
        from unnest(companies, places, turns, served) as i(company_id, place, turns, served)
        where (i.served < i.turns or i.turns = 0) and i.place <= reached
        limit most
    ) i
    where pg_try_advisory_xact_lock(company_lock(current_schema()::text, i.company_id));
    if idle_companies is null then
        return 0;
    end if;
    with leaving as materialized (
        select i.company_id, i.place
        from unnest(idle_companies, idle_places) as i(company_id, place)
        left join lateral (select c.paused from companies c where c.id = i.company_id offset 0) c on true
        left join lateral (
            select true as found from pending_tasks p
            where p.queue = in_queue and p.company_id = i.company_id
            order by p.queue, p.company_id, p.priority, p.run_after, p.task_id limit 1) p on true
        where coalesce(c.paused, true) or p.found is null
    ), turns_left as (
        delete from turns t using leaving l
        where t.queue = in_queue and t.place = l.place and t.company_id = l.company_id
    )
    delete from lines x using leaving l where x.company_id = l.company_id and x.queue = in_queue;
    return cardinality(idle_companies);
end
$$;
