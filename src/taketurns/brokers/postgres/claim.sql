-- Take up to `batch` turns for a worker: which companies' turns they are, then the head tasks of those companies.
-- Safe because the decision is made under the cell's lock by statements that begin after it was taken (each has a
-- snapshot of its own), and because only one DELETE can take a row from pending_tasks, lock or no lock.
-- Lives on turns_queue_place_company_id_idx (whose turn) and pending_tasks_pkey (each company's head).
-- The rule is told in taketurns/engine/turns.py; the names are the same here.

create or replace function claim(
    for_worker uuid,
    in_queues text[],
    batch integer,
    with_token uuid,
    skipped_types text[] default '{}',
    at timestamptz default null
) returns table (
    company_id uuid,
    task_id uuid,
    type text,
    queue text,
    priority smallint,
    run_after timestamptz,
    retry_count integer,
    rescue_count smallint,
    event_number integer,
    claimed_at timestamptz,
    payload text,
    max_retries integer,
    timeout_seconds double precision,
    request_id text,
    created_at timestamptz
)
language plpgsql volatile
set search_path from current
set plan_cache_mode = force_generic_plan
set enable_seqscan = off
set enable_bitmapscan = off
set enable_mergejoin = off
set enable_sort = off
set jit = off
set lock_timeout = '5s'
as $$
#variable_conflict use_column
declare
    -- How far a head is searched past tasks of types that this worker does not know.
    look_ahead constant integer := 100;
    moment constant timestamptz := coalesce(at, clock_timestamp());
    free integer := batch;
    line text;
    lifted boolean;
    hands_in_all bigint;
    weight_waiting bigint;
    companies_waiting bigint;
    visited uuid[];
    chosen_rows tid[];
    idle_rows tid[];
    began numeric;
    reached numeric;
    chosen_companies uuid[];
    chosen_turns integer[];
    chosen_places numeric[];
    chosen_weights integer[];
    idle_companies uuid[];
    pass_companies uuid[];
    pass_tasks uuid[];
    taken_companies uuid[] := '{}';
    taken_tasks uuid[] := '{}';
begin
    if current_setting('transaction_isolation') <> 'read committed' then
        raise exception 'claim must run in a read committed transaction of its own'
            using errcode = 'invalid_transaction_state';
    end if;
    perform pg_advisory_xact_lock(cell_lock());

    -- The hands of the fleet with this batch in them, and the weight of the companies that have tasks waiting or
    -- running. The walk stops where that weight makes every share that is asked for a single hand. Of a hundred
    -- companies each is looked at; of more, one that ran out of work counts until the rotation has passed its place.
    with held as materialized (
        select p.company_id, count(*) as hands from processing_tasks p group by p.company_id
    ), fleet as materialized (
        select coalesce(sum(h.hands), 0)::bigint + batch as hands,
            greatest(
                (select max(c.weight) from held h cross join lateral (
                    select c.weight from companies c where c.id = h.company_id offset 0) c),
                (select max(c.weight) from (select distinct q.queue from unnest(in_queues) as q(queue)) q
                    cross join lateral (
                        select t.company_id from turns t where t.queue = q.queue
                        order by t.queue, t.place, t.company_id limit batch) n
                    cross join lateral (
                        select c.weight from companies c where c.id = n.company_id offset 0) c),
                1) as heaviest
        from held h
    ), rotating as materialized (
        select distinct t.company_id from turns t
        order by t.company_id
        limit (select f.hands * f.heaviest from fleet f)
    ), waiting as materialized (
        select r.company_id, c.weight
        from rotating r
        cross join lateral (
            select c.weight from companies c where c.id = r.company_id and not c.paused offset 0) c
        where (select count(*) from rotating) > 100
        union all
        select r.company_id, c.weight
        from rotating r
        cross join lateral (
            select c.weight from companies c where c.id = r.company_id and not c.paused offset 0) c
        cross join lateral (
            select
            from turns t
            cross join lateral (
                select from pending_tasks p where p.queue = t.queue and p.company_id = t.company_id
                order by p.queue, p.company_id, p.priority, p.run_after, p.task_id limit 1) p
            where t.company_id = r.company_id
            limit 1) t
        where (select count(*) from rotating) <= 100
    )
    select f.hands, (select count(*) from waiting),
        coalesce((select sum(w.weight) from waiting w), 0)
        + coalesce((select sum(c.weight)
                    from held h
                    cross join lateral (select c.weight from companies c where c.id = h.company_id offset 0) c
                    where h.company_id not in (select w.company_id from waiting w)), 0)
    into hands_in_all, companies_waiting, weight_waiting
    from fleet f;

    foreach lifted in array array[false, true] loop
        foreach line in array in_queues loop
            visited := '{}';
            exit when free = 0;
            began := coalesce((select r.place from rotations r where r.queue = line), 0);
            reached := began;
            while free > 0 loop
                -- Whose turns come next. A company that is passed over holds hands, so looking at as many more
                -- companies as hold any is enough to find everybody who is not.
                with held as (
                    select p.company_id, count(*) as hands from processing_tasks p group by p.company_id
                ), nearest as materialized (
                    select t.ctid as row_id, t.company_id, t.place
                    from turns t
                    where t.queue = line and t.company_id <> all (visited)
                    order by t.queue, t.place, t.company_id
                    limit free + (select count(*) from held)
                ), candidate as materialized (
                    select n.row_id, n.company_id, n.place, coalesce(c.weight, 1)::integer as weight,
                        coalesce(c.paused, true) as paused,
                        least(
                            free,
                            c.max_in_flight - coalesce(h.hands, 0),
                            case when not lifted then
                                least(
                                    ceil(hands_in_all::numeric * c.weight / greatest(weight_waiting, c.weight)),
                                    case when companies_waiting > 1 then greatest(hands_in_all - 1, 1) end
                                ) - coalesce(h.hands, 0)
                            end
                        )::integer as room
                    from nearest n
                    left join lateral (select * from companies c where c.id = n.company_id offset 0) c on true
                    left join held h on h.company_id = n.company_id
                ), span as (
                    select (free + count(*))::numeric / greatest(sum(c.weight), 1) as rounds
                    from candidate c where c.room > 0 and not c.paused
                ), turn as (
                    select c.row_id, c.company_id, c.place, c.weight,
                        case when k.turn = 1 then c.place
                            else turn_place(greatest(c.place, reached), c.weight, k.turn - 1) end as turn_place
                    from candidate c
                    cross join span s
                    cross join lateral generate_series(1, least(c.room, ceil(c.weight * s.rounds)::integer + 1)) k(turn)
                    where not c.paused
                    order by turn_place, c.company_id
                    limit free
                ), chosen as (
                    select t.row_id, t.company_id, t.place, t.weight, count(*)::integer as turns
                    from turn t group by t.row_id, t.company_id, t.place, t.weight
                )
                select array_agg(c.row_id), array_agg(c.company_id), array_agg(c.turns), array_agg(c.place),
                    array_agg(c.weight),
                    (select array_agg(c.row_id) from candidate c where c.paused),
                    (select array_agg(c.company_id) from candidate c where c.paused)
                into chosen_rows, chosen_companies, chosen_turns, chosen_places, chosen_weights, idle_rows, idle_companies
                from chosen c;

                exit when chosen_companies is null and idle_companies is null;

                -- Their head tasks change hands.
                with head as materialized (
                    select p.row_id, p.task_id,
                        case when p.turn = 1 then c.place
                            else turn_place(greatest(c.place, reached), c.weight, p.turn - 1) end as turn_place
                    from unnest(chosen_companies, chosen_turns, chosen_places, chosen_weights)
                        as c(company_id, turns, place, weight)
                    cross join lateral (
                        select h.row_id, h.task_id, (row_number() over ())::integer as turn
                        from (
                            select p.ctid as row_id, p.task_id, p.type
                            from pending_tasks p
                            where p.queue = line and p.company_id = c.company_id
                            order by p.queue, p.company_id, p.priority, p.run_after, p.task_id
                            limit c.turns + case when cardinality(skipped_types) > 0 then look_ahead else 0 end
                        ) h
                        where h.type <> all (skipped_types)
                        limit c.turns
                    ) p
                ), taken as (
                    delete from pending_tasks p where p.ctid = any (array(select h.row_id from head h))
                    returning p.*
                ), moved as (
                    insert into processing_tasks (company_id, task_id, queue, priority, run_after, type, retry_count,
                        rescue_count, event_number, worker_id, claim_token, claimed_at)
                    select t.company_id, t.task_id, t.queue, t.priority, t.run_after, t.type, t.retry_count,
                        t.rescue_count, t.event_number + 1, for_worker, with_token, moment
                    from taken t
                )
                select coalesce(array_agg(t.company_id order by h.turn_place, t.company_id), '{}'),
                    coalesce(array_agg(t.task_id order by h.turn_place, t.company_id), '{}')
                into pass_companies, pass_tasks
                from taken t join head h on h.task_id = t.task_id;

                taken_companies := taken_companies || pass_companies;
                taken_tasks := taken_tasks || pass_tasks;
                free := free - cardinality(pass_tasks);

                -- Their next turns, and the place that the rotation has reached.
                with served as (
                    select c.row_id, c.company_id, c.place, c.weight, coalesce(s.turns, 0) as turns
                    from unnest(chosen_rows, chosen_companies, chosen_places, chosen_weights)
                        as c(row_id, company_id, place, weight)
                    left join (
                        select s.company_id, count(*)::integer as turns from unnest(pass_companies) as s(company_id)
                        group by s.company_id
                    ) s on s.company_id = c.company_id
                ), next as (
                    update turns t set place = turn_place(greatest(s.place, reached), s.weight, s.turns)
                    from served s
                    where t.ctid = s.row_id and t.company_id = s.company_id and s.turns > 0
                )
                select greatest(reached, max(
                        case when s.turns <= 1 then s.place
                            else turn_place(greatest(s.place, reached), s.weight, s.turns - 1) end)),
                    idle_rows || array_agg(s.row_id) filter (where s.turns = 0),
                    idle_companies || array_agg(s.company_id) filter (where s.turns = 0)
                into reached, idle_rows, idle_companies
                from served s;

                -- Who has no work, or may not have it done, leaves the walk; see company_lock.
                if idle_companies is not null then
                    visited := visited || idle_companies;
                    select array_agg(i.row_id), array_agg(i.company_id) into idle_rows, idle_companies
                    from unnest(idle_rows, idle_companies) as i(row_id, company_id)
                    where pg_try_advisory_xact_lock(company_lock(i.company_id));
                    delete from turns t where t.ctid = any (array(
                        select i.row_id
                        from unnest(idle_rows, idle_companies) as i(row_id, company_id)
                        left join lateral (
                            select c.paused from companies c where c.id = i.company_id offset 0) c on true
                        left join lateral (
                            select true as found from pending_tasks p
                            where p.queue = line and p.company_id = i.company_id
                            order by p.queue, p.company_id, p.priority, p.run_after, p.task_id limit 1) p on true
                        where coalesce(c.paused, true) or p.found is null
                    )) and t.queue = line;
                end if;
            end loop;
            if reached > began then
                insert into rotations (queue, place) values (line, reached)
                on conflict (queue) do update set place = excluded.place;
            end if;
        end loop;
    end loop;

    return query
    select t.company_id, t.id, t.type, t.queue, t.priority, p.run_after, p.retry_count, p.rescue_count,
        p.event_number, p.claimed_at, t.payload::text, t.max_retries, t.timeout_seconds, t.request_id, t.created_at
    from unnest(taken_companies, taken_tasks) with ordinality as o(company_id, task_id, turn)
    cross join lateral (
        select * from processing_tasks p where p.company_id = o.company_id and p.task_id = o.task_id offset 0) p
    cross join lateral (select * from tasks t where t.company_id = o.company_id and t.id = o.task_id offset 0) t
    order by o.turn;
end
$$;
