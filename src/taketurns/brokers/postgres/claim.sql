-- Take up to `batch` turns for a worker: which companies' turns they are, then the head tasks of those companies.
-- Safe because the decision is made under the cell's lock by statements that begin after it was taken (each has a
-- snapshot of its own), and because only one DELETE can take a row from pending_tasks, lock or no lock.
-- Lives on turns_pkey (whose turn), pending_tasks_pkey (each company's head) and processing_tasks_claimed_at_idx
-- (who holds what). The rule is told in taketurns/engine/turns.py and rate.py; the names are the same here.
--
-- A line whose company has reached a limit rests: its turn leaves the walk, and comes back in the first claim that may
-- serve it. When a claim is not full and such a line waits for its rate, a last row with no task tells until when.
-- Resting lives on lines_rests_until_idx and lines_full_since_idx. See decisions/0013.
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
    created_at timestamptz,
    traceparent text,
    again_at timestamptz
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
    -- How many companies may leave in one claim: each takes a lock, and the server's table of them is small.
    may_leave integer := 1000;
    -- How many lines whose time has come are brought back in one claim.
    may_return constant integer := 1000;
    cell constant text := current_schema();
    nobody constant uuid := '00000000-0000-0000-0000-000000000000';
    everybody constant uuid := 'ffffffff-ffff-ffff-ffff-ffffffffffff';
    moment timestamptz;
    free integer := batch;
    told integer;
    line text;
    lifted boolean;
    last looks;
    looked_lately boolean;
    is_over_dead_rows boolean;
    oldest_claim timestamptz;
    full_from timestamptz;
    due_from timestamptz;
    holders uuid[];
    holdings integer[];
    started integer[];
    full_companies uuid[];
    hands_in_all bigint;
    total_weight bigint;
    companies_waiting integer := 0;
    weighed uuid := nobody;
    waiting record;
    holders_before uuid[];
    passed_over integer;
    shares_matter boolean;
    known rotations;
    reached bigint;
    lowest bigint;
    look integer;
    look_is_full boolean;
    heaviest integer;
    behind_place bigint;
    behind_company uuid;
    near_rows tid[];
    near_companies uuid[];
    near_places bigint[];
    near_weights integer[];
    near_hands integer[];
    near_rooms integer[];
    near_resting tid[];
    near_rests timestamptz[];
    near_limits integer[];
    resting_rows tid[] := '{}';
    resting_queues text[] := '{}';
    resting_until timestamptz[] := '{}';
    resting_below integer[] := '{}';
    some_are_paused boolean;
    types_are_paused boolean;
    ahead integer;
    some_are_rated boolean;
    any_is_rated boolean := false;
    chosen_rows tid[];
    chosen_companies uuid[];
    chosen_turns integer[];
    chosen_places bigint[];
    chosen_weights integer[];
    idle_rows tid[];
    idle_companies uuid[];
    idle_places bigint[];
    pass_companies uuid[];
    pass_tasks uuid[];
    taken_companies uuid[] := '{}';
    taken_tasks uuid[] := '{}';
begin
    if current_setting('transaction_isolation') <> 'read committed' then
        raise exception 'claim must run in a read committed transaction of its own'
            using errcode = 'invalid_transaction_state';
    end if;
    perform pg_advisory_xact_lock(cell_lock(cell));
    moment := coalesce(at, clock_timestamp());
    select * into last from looks l order by l.number desc limit 1;
    looked_lately := coalesce(
        moment between last.from_the_beginning_at and last.from_the_beginning_at + interval '1 second', false);
    is_over_dead_rows := looked_lately and last.has_old_snapshot;
    oldest_claim := case when is_over_dead_rows then last.oldest_claim else '-infinity' end;
    select count(*) > 0, coalesce(bool_or(z.type <> ''), false) into some_are_paused, types_are_paused from pauses z
    where z.until is null or z.until > moment;
    ahead := case when cardinality(skipped_types) > 0 or types_are_paused then look_ahead else 0 end;
    full_from := oldest_claim;
    due_from := case when is_over_dead_rows then last.from_the_beginning_at else '-infinity' end;

    -- Who holds how many hands, this batch included, and the weight of those companies.
    select coalesce(array_agg(h.company_id), '{}'), coalesce(array_agg(h.hands), '{}'),
        array_fill(0, array[count(*)::integer]),
        coalesce(array_agg(h.company_id) filter (where h.hands >= c.max_in_flight), '{}'),
        coalesce(min(h.oldest_claim), moment), coalesce(sum(h.hands), 0) + batch, coalesce(sum(c.weight), 0)
    into holders, holdings, started, full_companies, oldest_claim, hands_in_all, total_weight
    from (
        select p.company_id, count(*)::integer as hands, min(p.claimed_at) as oldest_claim
        from (
            select p.company_id, p.claimed_at from processing_tasks p
            where p.claimed_at >= oldest_claim and p.queue <> '!inline'
            order by p.claimed_at offset 0
        ) p
        group by p.company_id
    ) h
    left join lateral (select c.weight, c.max_in_flight from companies c where c.id = h.company_id offset 0) c on true;
    holders_before := holders;

    -- Lines that have rested come back to where they were; over dead rows, to where the walk begins at the latest.
    if exists (select from lines l where l.rests_until >= due_from and l.rests_until <= moment)
        or exists (select from lines l where l.full_since >= full_from)
    then
        with rested as materialized (
            select l.ctid as row_id, l.company_id, l.queue, l.rests_place
            from lines l
            where l.rests_until >= due_from and l.rests_until <= moment
            order by l.rests_until limit may_return
            for update skip locked
        ), freed as materialized (
            select l.ctid as row_id, l.company_id, l.queue, l.rests_place
            from lines l
            left join unnest(holders, holdings) as h(company_id, hands) on h.company_id = l.company_id
            where l.full_since >= full_from and coalesce(h.hands, 0) < l.rests_below
            for update of l skip locked
        ), back as materialized (
            select * from rested union all select * from freed
        ), returned as (
            update turns t
            set queue = b.queue,
                place = case when is_over_dead_rows then greatest(t.place, (
                    select r.lowest_turn from rotations r where r.queue = b.queue order by r.place desc limit 1))
                    else t.place end
            from back b
            where t.queue = '!' || b.queue and t.place = b.rests_place and t.company_id = b.company_id
        )
        update lines l set rests_place = null, rests_until = null, full_since = null, rests_below = null
        from back b where l.ctid = b.row_id;
    end if;

    foreach lifted in array array[false, true] loop
        foreach line in array in_queues loop
            exit when free = 0;
            known := null;
            select * into known from rotations r where r.queue = line order by r.place desc limit 1;
            reached := coalesce(known.place, 0);
            lowest := case when is_over_dead_rows then coalesce(known.lowest_turn, 0) else 0 end;
            behind_place := lowest - 1;
            behind_company := everybody;
            look := 1;
            passed_over := cardinality(holders_before) - cardinality(full_companies);
            while free > 0 loop
                -- Who stands nearest, behind the last turn that was looked at, and how many more hands each may have
                -- (-1: none, for it is paused or gone). A company that is passed over holds its share, so as many more
                -- as may hold theirs are enough to find the others; the look widens by how many of them have no work,
                -- or have reached a limit: those are to rest.
                select array_agg(n.row_id), array_agg(n.company_id), array_agg(n.place),
                    array_agg(coalesce(c.weight, 1)), array_agg(coalesce(h.hands, 0)),
                    array_agg(case when c.paused is distinct from false then -1
                        when z.until is not null then 0
                        else greatest(least(free, c.max_in_flight - coalesce(h.hands, 0), r.starts), 0) end),
                    array_agg(n.row_id) filter (where not c.paused and l.is_reached),
                    array_agg(case when z.until is not null then z.until
                        when c.max_in_flight <= h.hands then null
                        else r.until end) filter (where not c.paused and l.is_reached),
                    array_agg(case when z.until is null and c.max_in_flight <= h.hands then c.max_in_flight end)
                        filter (where not c.paused and l.is_reached),
                    bool_or(c.rate_tasks is not null),
                    max(c.weight), count(*) = look * free + passed_over,
                    not lifted and (bool_or(h.hands > 0) or count(*) < free)
                into near_rows, near_companies, near_places, near_weights, near_hands, near_rooms,
                    near_resting, near_rests, near_limits, some_are_rated, heaviest, look_is_full, shares_matter
                from (
                    select t.ctid as row_id, t.company_id, t.place
                    from turns t
                    where t.queue = line and (t.place, t.company_id) > (behind_place, behind_company)
                    order by t.queue, t.place, t.company_id
                    limit look * free + passed_over
                ) n
                left join lateral (select * from companies c where c.id = n.company_id offset 0) c on true
                left join unnest(holders, holdings, started) as h(company_id, hands, started)
                    on h.company_id = n.company_id
                left join lateral (
                    select starts_left(c.rate_tasks, c.rate_seconds, c.rate_burst, o.owes) as starts,
                        may_start_at(c.rate_tasks, c.rate_seconds, c.rate_burst, o.owes, moment) as until
                    from (
                        select case when c.rate_tasks is not null then
                            owes(c.id, c.rate_tasks, c.rate_seconds, c.rate_burst, moment)
                                + coalesce(h.started, 0) * c.rate_seconds * 1000000::bigint end as owes
                        offset 0) o
                ) r on true
                left join lateral (
                    select max(coalesce(z.until, 'infinity')) as until from pauses z
                    where some_are_paused and z.company_id in (nobody, n.company_id) and z.queue = line and z.type = ''
                        and (z.until is null or z.until > moment)
                ) z on true
                cross join lateral (
                    select z.until is not null or c.max_in_flight <= h.hands or r.starts = 0 as is_reached) l;

                exit when near_rows is null;
                any_is_rated := any_is_rated or some_are_rated;
                if near_resting is not null then
                    resting_rows := resting_rows || near_resting;
                    resting_queues := resting_queues || array_fill(line, array[cardinality(near_resting)]);
                    resting_until := resting_until || near_rests;
                    resting_below := resting_below || near_limits;
                end if;

                loop
                    -- The weight of the companies that had tasks waiting or running, as far as it matters: until every
                    -- share that is asked for is a single hand, and not at all if nobody comes to hold more than one.
                    -- The first few are asked for their tasks; of more, one that has run out counts until the rotation
                    -- has passed its place.
                    if shares_matter and (total_weight < hands_in_all * heaviest or companies_waiting < 2) then
                        for waiting in
                            select r.company_id, c.weight
                            from (
                                select d.company_id, row_number() over (order by d.company_id) as number
                                from (
                                    select distinct l.company_id from lines l
                                    where l.company_id > weighed and l.rests_place is null
                                        and not (some_are_paused and exists (
                                            select from pauses z
                                            where z.company_id in (nobody, l.company_id) and z.queue = l.queue
                                                and z.type = '' and (z.until is null or z.until > moment)))
                                ) d
                            ) r
                            cross join lateral (
                                select c.* from companies c where c.id = r.company_id and not c.paused offset 0) c
                            where r.company_id <> all (full_companies)
                                and case when c.rate_tasks is null then true
                                    else 0 < starts_left(c.rate_tasks, c.rate_seconds, c.rate_burst,
                                        owes(c.id, c.rate_tasks, c.rate_seconds, c.rate_burst, moment)) end
                                and (is_over_dead_rows or r.number > few or r.company_id = any (taken_companies) or exists (
                                select
                                from lines l
                                cross join lateral (
                                    select p.type from pending_tasks p
                                    where p.queue = l.queue and p.company_id = l.company_id
                                    order by p.queue, p.company_id, p.priority, p.run_after, p.task_id
                                    limit case when types_are_paused then look_ahead else 1 end) p
                                where l.company_id = r.company_id and not (types_are_paused and exists (
                                    select from pauses z
                                    where z.company_id in (nobody, l.company_id) and z.queue in ('', l.queue)
                                        and z.type = p.type and (z.until is null or z.until > moment)))
                                offset 0))
                            order by r.company_id
                        loop
                            weighed := waiting.company_id;
                            companies_waiting := companies_waiting + 1;
                            if waiting.company_id <> all (holders_before) then
                                total_weight := total_weight + waiting.weight;
                            end if;
                            exit when total_weight >= hands_in_all * heaviest and companies_waiting > 1;
                        end loop;
                    end if;

                    -- Their turns in order of place, up to where one might be missing: of a company that was not looked
                    -- at, or of one whose further turns are not listed.
                    with near as materialized (
                        select n.row_id, n.company_id, n.place, n.weight,
                            (case when lifted then n.room else least(
                                n.room,
                                (hands_in_all * n.weight + greatest(total_weight, n.weight) - 1)
                                    / greatest(total_weight, n.weight) - n.hands,
                                case when companies_waiting > 1 then greatest(hands_in_all - 1, 1) - n.hands end
                            ) end)::integer as room
                        from unnest(near_rows, near_companies, near_places, near_weights, near_hands, near_rooms)
                            as n(row_id, company_id, place, weight, hands, room)
                    ), span as materialized (
                        select greatest(reached, min(n.place)) as place,
                            (look * free + count(*)) * 32768 / sum(n.weight) as units
                        from near n where n.room > 0 having count(*) > 0
                    ), sight as materialized (
                        select s.place, s.company_id
                        from (
                            select s.place + s.units - 1, everybody from span s
                            union all
                            select near_places[cardinality(near_rows)], near_companies[cardinality(near_rows)]
                            where look_is_full
                        ) s(place, company_id)
                        order by s.place, s.company_id limit 1
                    ), turn as materialized (
                        select n.row_id, n.company_id, n.place, n.weight, k.turn_place
                        from near n
                        cross join span s
                        cross join lateral (
                            select case when k.turn = 1 then n.place
                                else turn_place(greatest(n.place, reached), n.weight, k.turn - 1) end as turn_place
                            from generate_series(1, least(n.room, n.weight * s.units / 32768 + 2)::integer) k(turn)
                        ) k
                        cross join sight v
                        where n.room > 0 and (k.turn_place, n.company_id) <= (v.place, v.company_id)
                        order by k.turn_place, n.company_id
                        limit look * free
                    ), last as (
                        (select t.turn_place as place, t.company_id from turn t
                         where (select count(*) from turn) = look * free
                         order by t.turn_place desc, t.company_id desc limit 1)
                        union all
                        select v.place, v.company_id from sight v
                        limit 1
                    ), chosen as (
                        select t.row_id, t.company_id, t.place, t.weight, count(*)::integer as turns
                        from turn t group by t.row_id, t.company_id, t.place, t.weight
                        union all
                        select n.row_id, n.company_id, n.place, n.weight, 0
                        from unnest(near_rows, near_companies, near_places, near_weights, near_rooms)
                            as n(row_id, company_id, place, weight, room)
                        where n.room = -1
                    )
                    select (select l.place from last l), (select l.company_id from last l),
                        array_agg(c.row_id), array_agg(c.company_id), array_agg(c.turns), array_agg(c.place),
                        array_agg(c.weight)
                    into behind_place, behind_company, chosen_rows, chosen_companies, chosen_turns, chosen_places,
                        chosen_weights
                    from chosen c;

                    exit when lifted or shares_matter or not coalesce(1 < any (chosen_turns), false);
                    shares_matter := true;
                end loop;

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
                                    limit c.turns + ahead
                                )
                                union all
                                (
                                    select p.ctid as row_id, p.task_id, p.priority, p.run_after, p.type
                                    from pending_tasks p
                                    where p.queue = line and p.company_id = c.company_id
                                        and (p.priority, p.run_after, p.task_id)
                                            >= (f.floor_priority, f.floor_run_after, f.floor_task_id)
                                    order by p.queue, p.company_id, p.priority, p.run_after, p.task_id
                                    limit c.turns + ahead
                                )
                            ) p
                            where p.type <> all (skipped_types) and not (types_are_paused and exists (
                                select from pauses z
                                where z.company_id in (nobody, c.company_id) and z.queue in ('', line)
                                    and z.type = p.type and (z.until is null or z.until > moment)))
                            order by p.priority, p.run_after, p.task_id
                            limit c.turns
                        ) h
                    ) p
                    order by turn_place, c.company_id
                    limit free
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
                    select c.row_id, c.company_id, c.weight, coalesce(s.turns, 0) as turns, s.furthest,
                        coalesce(s.turns, 0) < c.turns or c.turns = 0 as is_idle,
                        case when s.turns > 0 then turn_place(greatest(c.place, reached), c.weight, s.turns)
                            else c.place end as next_place
                    from unnest(chosen_rows, chosen_companies, chosen_turns, chosen_places, chosen_weights)
                        as c(row_id, company_id, turns, place, weight)
                    left join (
                        select t.company_id, count(*)::integer as turns, max(t.turn_place) as furthest
                        from turn t group by t.company_id
                    ) s on s.company_id = c.company_id
                ), last as (
                    select distinct on (t.company_id) t.company_id, t.priority, t.run_after, t.task_id
                    from turn t where is_over_dead_rows order by t.company_id, t.turn desc
                ), advanced as (
                    update turns t
                    set place = s.next_place,
                        floor_priority = l.priority, floor_run_after = l.run_after, floor_task_id = l.task_id
                    from served s left join last l on l.company_id = s.company_id
                    where t.ctid = s.row_id and t.company_id = s.company_id and s.turns > 0
                )
                select
                    (select coalesce(array_agg(t.company_id order by t.turn_place, t.company_id), '{}') from turn t),
                    (select coalesce(array_agg(t.task_id order by t.turn_place, t.company_id), '{}') from turn t),
                    greatest(reached, max(s.furthest),
                        max(s.next_place) filter (where s.is_idle and lifted and free > (select count(*) from turn)
                            and s.next_place <= coalesce(behind_place, s.next_place))),
                    array_agg(s.row_id) filter (where s.is_idle and s.turns = 0),
                    array_agg(s.company_id) filter (where s.is_idle and s.turns = 0),
                    array_agg(s.next_place) filter (where s.is_idle and s.turns = 0)
                into pass_companies, pass_tasks, reached, idle_rows, idle_companies, idle_places
                from served s;

                taken_companies := taken_companies || pass_companies;
                taken_tasks := taken_tasks || pass_tasks;
                free := free - cardinality(pass_tasks);
                passed_over := 0;
                if free > 0 then
                    look := least(64, case when pass_tasks = '{}' then look * 2
                        else ceil((select sum(c) from unnest(chosen_turns) c)::numeric / cardinality(pass_tasks)) end);
                end if;
                if free > 0 or any_is_rated then
                    select array_agg(h.company_id), array_agg(h.hands), array_agg(h.started)
                    into holders, holdings, started
                    from (
                        select h.company_id, sum(h.hands)::integer as hands, sum(h.started)::integer as started
                        from (
                            select * from unnest(holders, holdings, started)
                            union all
                            select c.company_id, 1, 1 from unnest(pass_companies) as c(company_id)
                        ) as h(company_id, hands, started)
                        group by h.company_id
                    ) h;
                end if;

                -- Who has no work, or may not have it done, keeps its place until the rotation has passed it, and
                -- then leaves the walk; see company_lock.
                if idle_rows is not null and may_leave > 0 then
                    select array_agg(i.row_id), array_agg(i.company_id) into idle_rows, idle_companies
                    from (
                        select i.row_id, i.company_id
                        from unnest(idle_rows, idle_companies, idle_places) as i(row_id, company_id, place)
                        where i.place <= reached
                        limit may_leave
                    ) i
                    where pg_try_advisory_xact_lock(company_lock(cell, i.company_id));
                    may_leave := may_leave - coalesce(cardinality(idle_rows), 0);
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
                exit when behind_place is null;
            end loop;

            if reached > coalesce(known.place, 0) then
                delete from rotations r where r.queue = line and r.place = known.place;
                insert into rotations (queue, place, lowest_turn) values (line, reached, least(reached, (
                    select t.place from turns t where t.queue = line and t.place >= lowest
                    order by t.queue, t.place, t.company_id limit 1)));
            end if;
        end loop;
    end loop;

    -- What starts is owed; who has reached a limit rests.
    if any_is_rated and taken_tasks <> '{}' then
        with spent as materialized (
            select c.id, coalesce(b.number, 0) as number, c.rate_seconds,
                owed(c.rate_tasks, c.rate_seconds, c.rate_burst, b, moment)
                    + h.started * c.rate_seconds * 1000000::bigint as owed
            from unnest(holders, started) as h(company_id, started)
            cross join lateral (
                select c.* from companies c where c.id = h.company_id and c.rate_tasks is not null offset 0) c
            left join lateral (
                select b.* from buckets b where b.company_id = c.id order by b.company_id desc, b.number desc limit 1
            ) b on true
            where h.started > 0
        ), gone as (
            delete from buckets b using spent s where b.company_id = s.id and b.number = s.number
        )
        insert into buckets (company_id, number, owed, seconds, at)
        select s.id, s.number + 1, s.owed, s.rate_seconds, moment from spent s;
    end if;
    if resting_rows <> '{}' then
        with resting as materialized (
            select r.row_id, r.queue, max(r.until) as until, max(r.below) as below
            from unnest(resting_rows, resting_queues, resting_until, resting_below) as r(row_id, queue, until, below)
            group by r.row_id, r.queue
        ), left_the_walk as (
            update turns t set queue = '!' || r.queue from resting r
            where t.ctid = r.row_id and t.queue = r.queue
            returning t.company_id, r.queue, t.place, r.until, r.below
        )
        update lines l
        set rests_place = w.place, rests_until = case when w.below is null then w.until end,
            full_since = case when w.below is not null then moment end, rests_below = w.below
        from left_the_walk w where l.company_id = w.company_id and l.queue = w.queue;
    end if;

    if taken_tasks <> '{}' and (is_over_dead_rows or not looked_lately) then
        perform look(moment, is_over_dead_rows, oldest_claim);
    end if;
    perform from watches w where w.until > clock_timestamp() order by w.until desc limit 1;
    if found then
        perform tell_moves(taken_companies, taken_tasks);
    end if;

    return query
    select t.company_id, t.id, t.type, t.queue, t.priority, p.run_after, p.retry_count, p.rescue_count,
        p.event_number, p.claimed_at, t.payload::text, t.max_retries, t.timeout_seconds, t.request_id, t.created_at,
        t.traceparent, null::timestamptz
    from unnest(taken_companies, taken_tasks) with ordinality as o(company_id, task_id, turn)
    cross join lateral (
        select * from processing_tasks p where p.company_id = o.company_id and p.task_id = o.task_id offset 0) p
    cross join lateral (select * from tasks t where t.company_id = o.company_id and t.id = o.task_id offset 0) t
    order by o.turn;

    -- A task whose record was removed by hand is nobody's to do, and holds no hand.
    get diagnostics told = row_count;
    if told < cardinality(taken_tasks) then
        delete from processing_tasks p
        using unnest(taken_companies, taken_tasks) as o(company_id, task_id)
        where p.company_id = o.company_id and p.task_id = o.task_id
            and not exists (select from tasks t where t.company_id = p.company_id and t.id = p.task_id);
    end if;

    if free > 0 then
        return query
        select null::uuid, null::uuid, null::text, null::text, null::smallint, null::timestamptz, null::integer,
            null::smallint, null::integer, null::timestamptz, null::text, null::integer, null::double precision,
            null::text, null::timestamptz, null::text, l.rests_until
        from lines l where l.rests_until > moment and l.rests_until < 'infinity' and l.queue = any (in_queues)
        order by l.rests_until limit 1;
    end if;
end
$$;
