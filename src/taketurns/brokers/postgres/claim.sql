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
-- a second, or in a tenth of the time at most, they begin at the beginning all the same, for work that was committed
-- late. See decisions/0007.

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
set enable_memoize = off
set enable_sort = off
set jit = off
set lock_timeout = '5s'
as $$
#variable_conflict use_column
declare
    -- How far a head is searched past tasks of types that this worker does not know.
    look_ahead constant integer := 100;
    -- How many companies may leave in one claim: each takes a lock, and the server's table of them is small.
    may_leave integer := 1000;
    nobody constant uuid := '00000000-0000-0000-0000-000000000000';
    everybody constant uuid := 'ffffffff-ffff-ffff-ffff-ffffffffffff';
    began timestamptz;
    moment timestamptz;
    free integer := batch;
    told integer;
    line text;
    lifted boolean := false;
    held_back boolean;
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
    shared_hands bigint;
    total_weight bigint;
    companies_waiting integer;
    weighed uuid;
    holders_before uuid[];
    holdings_before integer[];
    started_before integer[];
    taken_before integer;
    passed_over integer;
    is_first boolean;
    is_alone boolean;
    has_run_out boolean;
    lines_over integer;
    idle_place bigint;
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
    rooms integer[];
    sight_place bigint;
    sight_company uuid;
    listed integer;
    most_turns integer;
    head_rows tid[];
    head_places bigint[];
    served_turns integer[];
    next_places bigint[];
    furthest bigint;
    pass_companies uuid[];
    pass_tasks uuid[];
    pass_run_afters timestamptz[];
    pass_retries integer[];
    pass_rescues smallint[];
    pass_events integer[];
    taken_companies uuid[] := '{}';
    taken_tasks uuid[] := '{}';
    taken_run_afters timestamptz[] := '{}';
    taken_retries integer[] := '{}';
    taken_rescues smallint[] := '{}';
    taken_events integer[] := '{}';
begin
    if current_setting('transaction_isolation') <> 'read committed' then
        raise exception 'claim must run in a read committed transaction of its own'
            using errcode = 'invalid_transaction_state';
    end if;
    perform pg_advisory_xact_lock(cell_lock(current_schema()::text));
    began := clock_timestamp();
    moment := coalesce(at, began);
    select * into last from looks l order by l.number desc limit 1;
    looked_lately := coalesce(moment between last.from_the_beginning_at
        and last.from_the_beginning_at + greatest(interval '1 second', 10 * last.took), false);
    is_over_dead_rows := looked_lately and last.has_old_snapshot;
    oldest_claim := case when is_over_dead_rows then last.oldest_claim else '-infinity' end;
    some_are_paused := exists (select from pauses z where z.until is null or z.until > moment);
    types_are_paused := some_are_paused and exists (
        select from pauses z where z.type <> '' and (z.until is null or z.until > moment));
    ahead := case when cardinality(skipped_types) > 0 or types_are_paused then look_ahead else 0 end;
    full_from := oldest_claim;
    due_from := case when is_over_dead_rows then last.from_the_beginning_at else '-infinity' end;

    -- Who holds how many hands.
    select coalesce(array_agg(h.company_id), '{}'), coalesce(array_agg(h.hands), '{}'),
        array_fill(0, array[count(*)::integer]),
        coalesce(array_agg(h.company_id) filter (where h.hands >= c.max_in_flight), '{}'),
        coalesce(min(h.oldest_claim), moment)
    into holders, holdings, started, full_companies, oldest_claim
    from (
        select p.company_id, count(*)::integer as hands, min(p.claimed_at) as oldest_claim
        from (
            select p.company_id, p.claimed_at from processing_tasks p
            where p.claimed_at >= oldest_claim and p.queue <> '!inline'
            order by p.claimed_at offset 0
        ) p
        group by p.company_id
    ) h
    left join lateral (select c.max_in_flight from companies c where c.id = h.company_id offset 0) c on true;

    if exists (select from lines l where l.rests_until >= due_from and l.rests_until <= moment)
        or exists (select from lines l where l.full_since >= full_from)
    then
        perform end_rests(moment, due_from, full_from, holders, holdings, is_over_dead_rows);
    end if;

    loop
        holders_before := holders;
        holdings_before := holdings;
        lines_over := 0;
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
            is_first := true;
            has_run_out := false;
            while free > 0 loop
                -- Who stands nearest, behind the last turn that was looked at, and how many more hands each may have
                -- (-1: none, for it is paused or gone). A company that is passed over holds its share, so as many more
                -- as may hold theirs are enough to find the others; the look widens by how many of them have no work,
                -- or have reached a limit: those are to rest.
                select array_agg(n.row_id order by n.place, n.company_id),
                    array_agg(n.company_id order by n.place, n.company_id),
                    array_agg(n.place order by n.place, n.company_id),
                    array_agg(coalesce(c.weight, 1) order by n.place, n.company_id),
                    array_agg(coalesce(h.hands, 0) order by n.place, n.company_id),
                    array_agg(case when c.paused is distinct from false then -1
                        when z.until is not null then 0
                        else greatest(least(free, c.max_in_flight - coalesce(h.hands, 0), r.starts), 0)
                        end order by n.place, n.company_id),
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

                if near_rows is null then
                    has_run_out := is_first;
                    exit;
                end if;
                -- A company that waits alone shares with nobody.
                is_alone := cardinality(near_rows) = 1 and not is_over_dead_rows and not exists (
                    select from lines l where l.rests_place is null and l.company_id <> near_companies[1]);
                shares_matter := shares_matter and not is_alone;
                any_is_rated := any_is_rated or some_are_rated;
                if near_resting is not null then
                    resting_rows := resting_rows || near_resting;
                    resting_queues := resting_queues || array_fill(line, array[cardinality(near_resting)]);
                    resting_until := resting_until || near_rests;
                    resting_below := resting_below || near_limits;
                end if;

                loop
                    -- The weight and the hands of the companies that had tasks waiting, as far as they matter: until
                    -- every share that is asked for is a single hand, and not at all if nobody comes to hold more.
                    -- Of what is null, for it was not weighed, least and greatest take no notice.
                    if shares_matter
                        and (weighed is null or total_weight < shared_hands * heaviest or companies_waiting < 2)
                    then
                        select w.total_weight, w.shared_hands, w.companies_waiting, w.weighed
                        into total_weight, shared_hands, companies_waiting, weighed
                        from weigh(total_weight, shared_hands, companies_waiting, weighed, heaviest,
                            batch - coalesce(taken_before, 0), moment, holders_before, holdings_before, started_before,
                            taken_companies[coalesce(taken_before, 0) + 1:], some_are_paused, types_are_paused,
                            is_over_dead_rows) w;
                    end if;

                    -- How many hands each may have, and how far it is looked: as far as about so many turns go.
                    select array_agg(n.room), greatest(reached, min(n.place) filter (where n.room > 0))
                            + (look * free * 32768 - 1) / sum(n.weight) filter (where n.room > 0),
                        held_back or bool_or(n.room < n.below_limits and n.below_limits > 0)
                    into rooms, sight_place, held_back
                    from (
                        select n.place, n.weight, n.room as below_limits, case when lifted then n.room else least(
                            n.room,
                            (shared_hands * n.weight + greatest(total_weight, n.weight) - 1)
                                / greatest(total_weight, n.weight) - n.hands,
                            case when companies_waiting > 1 then greatest(shared_hands - 1, 1) - n.hands end
                        ) end::integer as room
                        from unnest(near_places, near_weights, near_hands, near_rooms) as n(place, weight, hands, room)
                        offset 0
                    ) n;
                    sight_company := everybody;
                    if look_is_full and (near_places[cardinality(near_rows)] <= sight_place) is not false then
                        sight_place := near_places[cardinality(near_rows)];
                        sight_company := near_companies[cardinality(near_rows)];
                    end if;

                    -- How many turns each has as far as that.
                    select array_agg(c.row_id), array_agg(c.company_id), array_agg(c.place), array_agg(c.weight),
                        array_agg(c.turns), coalesce(sum(c.turns), 0), coalesce(max(c.turns), 0)
                    into chosen_rows, chosen_companies, chosen_places, chosen_weights, chosen_turns, listed, most_turns
                    from (
                        select n.*, least(n.room, 1 + turns_between(greatest(n.place, reached),
                            sight_place - (n.company_id > sight_company)::integer, n.weight))::integer as turns
                        from unnest(near_rows, near_companies, near_places, near_weights, rooms)
                            as n(row_id, company_id, place, weight, room)
                        where n.room > 0 and (n.place, n.company_id) <= (sight_place, sight_company)
                        offset 0
                    ) c;

                    exit when lifted or is_alone or shares_matter or most_turns < 2;
                    shares_matter := true;
                end loop;
                if -1 = any (near_rooms) then
                    select chosen_rows || array_agg(n.row_id), chosen_companies || array_agg(n.company_id),
                        chosen_places || array_agg(n.place), chosen_weights || array_agg(n.weight),
                        chosen_turns || array_agg(0)
                    into chosen_rows, chosen_companies, chosen_places, chosen_weights, chosen_turns
                    from unnest(near_rows, near_companies, near_places, near_weights, near_rooms)
                        as n(row_id, company_id, place, weight, room)
                    where n.room = -1;
                end if;

                -- The head tasks of their lines.
                if is_over_dead_rows then
                    select h.rows, h.turn_places into head_rows, head_places
                    from heads_above_floors(line, chosen_rows, chosen_companies, chosen_places, chosen_weights,
                        chosen_turns, reached, free, ahead, skipped_types, types_are_paused, moment) h;
                else
                    select array_agg(h.row_id), array_agg(h.turn_place) into head_rows, head_places
                    from (
                        select p.row_id, case when p.turn = 1 then c.place
                            else turn_place(greatest(c.place, reached), c.weight, p.turn - 1) end as turn_place
                        from unnest(chosen_rows, chosen_companies, chosen_places, chosen_weights, chosen_turns)
                            as c(row_id, company_id, place, weight, turns)
                        cross join lateral (
                            select h.row_id, (row_number() over ())::integer as turn
                            from (
                                select p.row_id
                                from (
                                    select p.ctid as row_id, p.type
                                    from pending_tasks p
                                    where p.queue = line and p.company_id = c.company_id
                                    order by p.queue, p.company_id, p.priority, p.run_after, p.task_id
                                    limit c.turns + ahead
                                ) p
                                where ahead = 0 or p.type <> all (skipped_types) and not (types_are_paused and exists (
                                    select from pauses z
                                    where z.company_id in (nobody, c.company_id) and z.queue in ('', line)
                                        and z.type = p.type and (z.until is null or z.until > moment)))
                                limit c.turns
                            ) h
                        ) p
                        order by turn_place, c.company_id
                        limit free
                    ) h;
                end if;

                -- They change hands; the places of those served move on.
                if head_rows is null then
                    pass_companies := '{}';
                    pass_tasks := '{}';
                    served_turns := array_fill(0, array[coalesce(cardinality(chosen_rows), 0)]);
                    next_places := chosen_places;
                else
                    with taken as (
                        delete from pending_tasks p
                        using unnest(head_rows, head_places) as h(row_id, turn_place)
                        where p.ctid = h.row_id
                        returning p.*, h.turn_place
                    ), moved as (
                        insert into processing_tasks (company_id, task_id, queue, priority, run_after, type, retry_count,
                            rescue_count, event_number, worker_id, claim_token, claimed_at)
                        select t.company_id, t.task_id, t.queue, t.priority, t.run_after, t.type, t.retry_count,
                            t.rescue_count, t.event_number + 1, for_worker, with_token, moment
                        from taken t
                    ), served as materialized (
                        select c.row_id, c.company_id, coalesce(s.turns, 0) as turns, s.furthest,
                            case when s.turns > 0 then turn_place(greatest(c.place, reached), c.weight, s.turns)
                                else c.place end as next_place
                        from unnest(chosen_rows, chosen_companies, chosen_places, chosen_weights)
                            as c(row_id, company_id, place, weight)
                        left join (
                            select t.company_id, count(*)::integer as turns, max(t.turn_place) as furthest
                            from taken t group by t.company_id
                        ) s on s.company_id = c.company_id
                    ), advanced as (
                        update turns t
                        set place = s.next_place, floor_priority = null, floor_run_after = null, floor_task_id = null
                        from served s
                        where t.ctid = s.row_id and t.company_id is not distinct from s.company_id and s.turns > 0
                            and not is_over_dead_rows
                    )
                    select t.*, s.*
                    into pass_companies, pass_tasks, pass_run_afters, pass_retries, pass_rescues, pass_events,
                        served_turns, next_places, furthest
                    from (
                        select coalesce(array_agg(t.company_id), '{}'), coalesce(array_agg(t.task_id), '{}'),
                            array_agg(t.run_after), array_agg(t.retry_count), array_agg(t.rescue_count),
                            array_agg(t.event_number + 1)
                        from (select * from taken t order by t.turn_place, t.company_id) t
                    ) t
                    cross join (
                        select array_agg(s.turns), array_agg(s.next_place), max(s.furthest) from served s
                    ) s;
                    reached := greatest(reached, furthest);
                    taken_companies := taken_companies || pass_companies;
                    taken_tasks := taken_tasks || pass_tasks;
                    taken_run_afters := taken_run_afters || pass_run_afters;
                    taken_retries := taken_retries || pass_retries;
                    taken_rescues := taken_rescues || pass_rescues;
                    taken_events := taken_events || pass_events;
                end if;
                if is_over_dead_rows then
                    perform advance_floors(chosen_rows, chosen_companies, next_places, pass_companies, pass_tasks);
                end if;
                passed_over := 0;
                free := free - cardinality(pass_tasks);
                if free > 0 then
                    look := least(64, case when pass_tasks = '{}' then look * 2
                        else (listed + cardinality(pass_tasks) - 1) / cardinality(pass_tasks) end);
                    behind_place := sight_place;
                    behind_company := sight_company;
                    -- Only where no other queue has anybody: a claim that is filled from another passes no places.
                    select is_first and lines_over = cardinality(in_queues) - 1 and not look_is_full
                            and cardinality(chosen_rows) = cardinality(near_rows) and bool_and(s.has_run_out),
                        max(s.place) filter (where s.has_run_out and s.place <= coalesce(behind_place, s.place))
                    into has_run_out, idle_place
                    from (
                        select s.place, s.served < s.turns or s.turns = 0 as has_run_out
                        from unnest(chosen_turns, served_turns, next_places) as s(turns, served, place)
                    ) s;
                    if lifted or has_run_out then
                        reached := greatest(reached, idle_place);
                    end if;
                end if;
                if pass_tasks <> '{}' and (free > 0 or any_is_rated) then
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
                if may_leave > 0 and (0 = any (served_turns) or has_run_out) then
                    may_leave := may_leave - leave_rotation(
                        line, chosen_companies, next_places, chosen_turns, served_turns, reached, may_leave);
                end if;
                exit when free > 0 and (has_run_out or behind_place is null);
                is_first := false;
            end loop;
            if has_run_out then
                lines_over := lines_over + 1;
            end if;

            if reached > coalesce(known.place, 0) then
                with left_behind as (
                    delete from rotations r where r.queue = line and r.place = known.place
                )
                insert into rotations (queue, place, lowest_turn) values (line, reached, least(reached, (
                    select t.place from turns t where t.queue = line and t.place >= lowest
                    order by t.queue, t.place, t.company_id limit 1)));
            end if;
        end loop;
        exit when lifted or free = 0 or lines_over = cardinality(in_queues);
        -- What those who ran out do not want is shared by those who were held back: it is counted again who waits. When
        -- nobody was found so, shares are lifted.
        lifted := held_back is not true or cardinality(taken_companies) = coalesce(taken_before, 0);
        held_back := null;
        taken_before := cardinality(taken_companies);
        started_before := started;
        total_weight := null;
        shared_hands := null;
        companies_waiting := null;
        weighed := null;
    end loop;

    if any_is_rated and taken_tasks <> '{}' then
        perform spend(holders, started, moment);
    end if;
    if resting_rows <> '{}' then
        perform rest(moment, resting_rows, resting_queues, resting_until, resting_below);
    end if;
    if taken_tasks <> '{}' and (is_over_dead_rows or not looked_lately) then
        perform look(moment, is_over_dead_rows, oldest_claim, began);
    end if;
    perform from watches w where w.until > clock_timestamp() order by w.until desc limit 1;
    if found then
        perform tell_moves(taken_companies, taken_tasks);
    end if;

    return query
    select t.company_id, t.id, t.type, t.queue, t.priority, o.run_after, o.retry_count, o.rescue_count,
        o.event_number, moment, t.payload::text, t.max_retries, t.timeout_seconds, t.request_id, t.created_at,
        t.traceparent, null::timestamptz
    from unnest(taken_companies, taken_tasks, taken_run_afters, taken_retries, taken_rescues, taken_events)
        with ordinality as o(company_id, task_id, run_after, retry_count, rescue_count, event_number, turn)
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
