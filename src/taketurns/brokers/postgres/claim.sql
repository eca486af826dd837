-- Take up to `batch` turns for a worker: which companies' turns they are, then the head tasks of those companies.
-- Safe because the decision is made under the cell's lock by statements that begin after it was taken (each has a
-- snapshot of its own), and because only one DELETE can take a row from pending_tasks, lock or no lock.
-- Lives on turns_pkey (whose turn), pending_tasks_pkey (each company's head) and processing_tasks_claimed_at_idx
-- (who holds what). The rule is told in taketurns/engine/turns.py; the names are the same here.
--
-- While a transaction elsewhere keeps an old snapshot, rows that claims have removed stay where they were, and every
-- scan from the beginning would step over all of them. Then scans begin at floors, below which nothing was left; once
-- a second they begin at the beginning all the same, for work that was committed late. See decisions/0007.

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
    -- Up to how many companies each is looked at before it counts as one that waits.
    few constant integer := 100;
    moment constant timestamptz := coalesce(at, clock_timestamp());
    free integer := batch;
    line text;
    lifted boolean;
    is_over_dead_rows boolean;
    oldest_claim timestamptz;
    holders uuid[];
    holdings integer[];
    hands_in_all bigint;
    weight_waiting bigint;
    companies_waiting bigint;
    known rotations;
    reached numeric;
    lowest numeric;
    visited uuid[];
    chosen_rows tid[];
    chosen_companies uuid[];
    chosen_turns integer[];
    chosen_places numeric[];
    chosen_weights integer[];
    idle_rows tid[];
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
    select f.is_over_dead_rows, f.oldest_claim into is_over_dead_rows, oldest_claim from floors(moment) f;

    -- Who holds how many hands.
    select array_agg(h.company_id), array_agg(h.hands), coalesce(min(h.oldest_claim), moment),
        coalesce(sum(h.hands), 0) + batch
    into holders, holdings, oldest_claim, hands_in_all
    from (
        select p.company_id, count(*)::integer as hands, min(p.claimed_at) as oldest_claim
        from processing_tasks p where p.claimed_at >= oldest_claim
        group by p.company_id
    ) h;

    -- The weight of the companies that have tasks waiting or running. The walk stops where it makes every share that
    -- is asked for a single hand. Of more than a few companies, one that ran out of work counts until the rotation
    -- has passed its place.
    with heaviest as materialized (
        select greatest(max(c.weight), 1) as weight
        from (
            select h.company_id from unnest(holders) as h(company_id)
            union all
            select t.company_id
            from unnest(in_queues) as q(queue)
            cross join lateral (
                select t.company_id from turns t where t.queue = q.queue
                order by t.queue, t.place, t.company_id limit least(batch, few)
            ) t
        ) r
        cross join lateral (select c.weight from companies c where c.id = r.company_id offset 0) c
    ), rotating as materialized (
        select distinct l.company_id from lines l
        order by l.company_id
        limit hands_in_all * (select h.weight from heaviest h)
    ), is_counted as materialized (
        select is_over_dead_rows or (select count(*) from rotating) > few as unseen
    ), waiting as materialized (
        select r.company_id, c.weight
        from rotating r
        cross join lateral (
            select c.weight from companies c where c.id = r.company_id and not c.paused offset 0) c
        where (select i.unseen from is_counted i)
        union all
        select r.company_id, c.weight
        from rotating r
        cross join lateral (
            select c.weight from companies c where c.id = r.company_id and not c.paused offset 0) c
        cross join lateral (
            select
            from lines l
            cross join lateral (
                select from pending_tasks p where p.queue = l.queue and p.company_id = l.company_id
                order by p.queue, p.company_id, p.priority, p.run_after, p.task_id limit 1) p
            where l.company_id = r.company_id
            limit 1) l
        where not (select i.unseen from is_counted i)
    )
    select (select count(*) from waiting),
        coalesce((select sum(w.weight) from waiting w), 0)
        + coalesce((select sum(c.weight)
                    from unnest(holders) as h(company_id)
                    cross join lateral (select c.weight from companies c where c.id = h.company_id offset 0) c
                    where h.company_id not in (select w.company_id from waiting w)), 0)
    into companies_waiting, weight_waiting;

    foreach lifted in array array[false, true] loop
        foreach line in array in_queues loop
            exit when free = 0;
            known := null;
            select * into known from rotations r where r.queue = line order by r.place desc limit 1;
            reached := coalesce(known.place, 0);
            lowest := case when is_over_dead_rows then coalesce(known.lowest_turn, 0) else 0 end;
            visited := '{}';
            while free > 0 loop
                -- Whose turns come next. A company that is passed over holds hands, so looking at as many more
                -- companies as hold any is enough to find everybody who is not.
                with nearest as materialized (
                    (
                        select t.ctid as row_id, t.company_id, reached as place, null::smallint as floor_priority
                        from turns t
                        where t.queue = line and t.place = -1 and t.company_id <> all (visited)
                        order by t.queue, t.place, t.company_id
                        limit free + coalesce(cardinality(holders), 0)
                    )
                    union all
                    (
                        select t.ctid, t.company_id, t.place, t.floor_priority
                        from turns t
                        where t.queue = line and t.place >= lowest and t.company_id <> all (visited)
                        order by t.queue, t.place, t.company_id
                        limit free + coalesce(cardinality(holders), 0)
                    )
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
                    left join unnest(holders, holdings) as h(company_id, hands) on h.company_id = n.company_id
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

                -- Their head tasks change hands; the places of those served move on, and the rotation's.
                with head as materialized (
                    select c.row_id as turn_row, p.row_id, p.task_id, p.priority, p.run_after, p.turn,
                        case when p.turn = 1 then c.place
                            else turn_place(greatest(c.place, reached), c.weight, p.turn - 1) end as turn_place
                    from unnest(chosen_rows, chosen_companies, chosen_turns, chosen_places, chosen_weights)
                        as c(row_id, company_id, turns, place, weight)
                    left join lateral (
                        select t.floor_priority, t.floor_run_after, t.floor_task_id from turns t
                        where t.ctid = c.row_id and is_over_dead_rows
                    ) f on true
                    cross join lateral (
                        select h.*, (row_number() over ())::integer as turn
                        from (
                            select p.* from (
                                (
                                    select p.ctid as row_id, p.task_id, p.priority, p.run_after, p.type
                                    from pending_tasks p
                                    where p.queue = line and p.company_id = c.company_id
                                        and p.priority < coalesce(f.floor_priority, 32767)
                                    order by p.queue, p.company_id, p.priority, p.run_after, p.task_id
                                    limit c.turns
                                        + case when cardinality(skipped_types) > 0 then look_ahead else 0 end
                                )
                                union all
                                (
                                    select p.ctid as row_id, p.task_id, p.priority, p.run_after, p.type
                                    from pending_tasks p
                                    where p.queue = line and p.company_id = c.company_id
                                        and (p.priority, p.run_after, p.task_id)
                                            >= (f.floor_priority, f.floor_run_after, f.floor_task_id)
                                    order by p.queue, p.company_id, p.priority, p.run_after, p.task_id
                                    limit c.turns
                                        + case when cardinality(skipped_types) > 0 then look_ahead else 0 end
                                )
                            ) p
                            where p.type <> all (skipped_types)
                            order by p.priority, p.run_after, p.task_id
                            limit c.turns
                        ) h
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
                ), turn as materialized (
                    select t.company_id, t.task_id, h.turn_row, h.turn, h.turn_place, h.priority, h.run_after
                    from taken t join head h on h.task_id = t.task_id
                ), served as materialized (
                    select c.row_id, c.company_id, c.place, c.weight, coalesce(s.turns, 0) as turns, s.furthest
                    from unnest(chosen_rows, chosen_companies, chosen_places, chosen_weights)
                        as c(row_id, company_id, place, weight)
                    left join (
                        select t.company_id, count(*)::integer as turns, max(t.turn_place) as furthest
                        from turn t group by t.company_id
                    ) s on s.company_id = c.company_id
                ), last as (
                    select distinct on (t.company_id) t.company_id, t.priority, t.run_after, t.task_id
                    from turn t where is_over_dead_rows order by t.company_id, t.turn desc
                ), advanced as (
                    update turns t
                    set place = turn_place(greatest(s.place, reached), s.weight, s.turns),
                        floor_priority = l.priority, floor_run_after = l.run_after, floor_task_id = l.task_id
                    from served s left join last l on l.company_id = s.company_id
                    where t.ctid = s.row_id and t.company_id = s.company_id and s.turns > 0
                )
                select
                    (select coalesce(array_agg(t.company_id order by t.turn_place, t.company_id), '{}') from turn t),
                    (select coalesce(array_agg(t.task_id order by t.turn_place, t.company_id), '{}') from turn t),
                    greatest(reached, max(coalesce(s.furthest, s.place))),
                    idle_rows || array_agg(s.row_id) filter (where s.turns = 0),
                    idle_companies || array_agg(s.company_id) filter (where s.turns = 0)
                into pass_companies, pass_tasks, reached, idle_rows, idle_companies
                from served s;

                taken_companies := taken_companies || pass_companies;
                taken_tasks := taken_tasks || pass_tasks;
                free := free - cardinality(pass_tasks);
                exit when free = 0 and idle_companies is null;

                select array_agg(h.company_id), array_agg(h.hands) into holders, holdings
                from (
                    select h.company_id, sum(h.hands)::integer as hands
                    from (
                        select * from unnest(holders, holdings)
                        union all
                        select c.company_id, 1 from unnest(pass_companies) as c(company_id)
                    ) as h(company_id, hands)
                    group by h.company_id
                ) h;

                -- Who has no work, or may not have it done, leaves the walk; see company_lock.
                if idle_companies is not null then
                    visited := visited || idle_companies;
                    select array_agg(i.row_id), array_agg(i.company_id) into idle_rows, idle_companies
                    from unnest(idle_rows, idle_companies) as i(row_id, company_id)
                    where pg_try_advisory_xact_lock(company_lock(i.company_id));
                    with leaving as materialized (
                        select i.row_id, i.company_id
                        from unnest(idle_rows, idle_companies) as i(row_id, company_id)
                        left join lateral (
                            select c.paused from companies c where c.id = i.company_id offset 0) c on true
                        left join lateral (
                            select true as found from pending_tasks p
                            where p.queue = line and p.company_id = i.company_id
                            order by p.queue, p.company_id, p.priority, p.run_after, p.task_id limit 1) p on true
                        where coalesce(c.paused, true) or p.found is null
                    ), turns_left as (
                        delete from turns t where t.ctid = any (array(select l.row_id from leaving l)) and t.queue = line
                    )
                    delete from lines x using leaving l where x.company_id = l.company_id and x.queue = line;
                end if;
            end loop;

            if reached > coalesce(known.place, 0) then
                delete from rotations r where r.queue = line and r.place = known.place;
                insert into rotations (queue, place, lowest_turn) values (line, reached, (
                    select t.place from turns t where t.queue = line and t.place >= lowest
                    order by t.queue, t.place, t.company_id limit 1));
            end if;
        end loop;
    end loop;

    if taken_tasks <> '{}' then
        perform look(moment, is_over_dead_rows, oldest_claim);
    end if;

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
