-- Why a task waits: what is known of its company's line, of the turns before its company's and of the workers that serve
-- it. Nothing for a task that does not wait. Tasks and turns ahead are counted up to `most` + 1, and a turn that is
-- farther away counts as that; a worker whose last beat is older than `living` is none, but a pass that comes again is.
-- Lives on the (company_id, task_id) index of each place, on pending_tasks_pkey from the head of the company's line and
-- on turns_pkey from the front of the rotation; pauses, workers and heartbeats are read whole. A line that rests is
-- where it will come back to, and so is a company that has none.

create or replace function why(
    of_company uuid,
    of_task uuid,
    most integer,
    living interval,
    at timestamptz default null
) returns table (
    now timestamptz,
    run_after timestamptz,
    since timestamptz,
    queue text,
    type text,
    paused text,
    paused_until timestamptz,
    queue_is_served boolean,
    type_is_served boolean,
    in_flight integer,
    max_in_flight integer,
    may_start_at timestamptz,
    tasks_ahead integer,
    turns_ahead bigint
)
language sql stable
set search_path from current
set enable_seqscan = off
set enable_bitmapscan = off
set jit = off
as $$
    with moment as materialized (
        select coalesce(why.at, clock_timestamp()) as now
    ), waiting as materialized (
        select p.task_id, case when starts_with(p.queue, '!') then split_part(p.queue, '!', 3) else p.queue end as queue,
            p.priority, p.run_after, p.type
        from pending_tasks p where p.company_id = of_company and p.task_id = of_task
        union all
        select s.task_id, s.queue, s.priority, s.run_after, s.type
        from scheduled_tasks s where s.company_id = of_company and s.task_id = of_task
    ), server as materialized (
        select w.queues, w.types from workers w cross join moment m where w.beat_at > m.now - living
        union all
        select h.queues, null from heartbeats h where h.kind = 'pass' and h.comes_again and h.left_at is null
    ), turn as materialized (
        select n.company_id, n.place, row_number() over () as number
        from (
            select r.company_id, r.place from waiting t join turns r on r.queue = t.queue
            order by r.queue, r.place, r.company_id limit most + 1
        ) n
    ), pause as materialized (
        select p.paused, nullif(max(coalesce(p.until, 'infinity')), 'infinity') as until
        from (
            select 'company' as paused, c.paused_until as until from companies c where c.id = of_company and c.paused
            union all
            select case when z.type = '' then 'queue' else 'type' end, z.until
            from waiting t
            join pauses z on z.company_id in ('00000000-0000-0000-0000-000000000000', of_company)
                and z.queue in ('', t.queue) and z.type in ('', t.type)
        ) p
        cross join moment m
        where p.until is null or p.until > m.now
        group by p.paused order by p.paused limit 1
    )
    select m.now, t.run_after,
        coalesce((
            select e.at from task_events e where e.company_id = of_company and e.task_id = of_task
            order by e.company_id desc, e.task_id desc, e.number desc limit 1), k.created_at),
        t.queue, t.type, p.paused, p.until,
        exists (select from server s where t.queue = any (s.queues)),
        exists (select from server s where t.queue = any (s.queues) and (s.types is null or t.type = any (s.types))),
        (select count(*)::integer from processing_tasks p where p.company_id = of_company and p.queue <> '!inline'),
        c.max_in_flight,
        case when c.rate_tasks is not null then may_start_at(c.rate_tasks, c.rate_seconds, c.rate_burst,
            owes(c.id, c.rate_tasks, c.rate_seconds, c.rate_burst, m.now), m.now) end,
        (
            select count(*)::integer
            from (
                select from pending_tasks p
                where p.queue = t.queue and p.company_id = of_company
                    and (p.priority, p.run_after, p.task_id) < (t.priority, t.run_after, t.task_id)
                order by p.queue, p.company_id, p.priority, p.run_after, p.task_id limit most + 1
            ) p
        ),
        coalesce(case when l.queue is not null and l.rests_place is null
            then (select n.number - 1 from turn n where n.company_id = of_company)
            else (select count(*) from turn n
                where (n.place, n.company_id) < (coalesce(l.rests_place, place_reached(t.queue)), of_company))
            end, most + 1)
    from waiting t
    cross join moment m
    join tasks k on k.company_id = of_company and k.id = of_task
    join companies c on c.id = of_company
    left join lines l on l.company_id = of_company and l.queue = t.queue
    left join pause p on true
$$;
