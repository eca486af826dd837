-- Set tasks aside that may not be done now, where they stand at the head of a line and keep what is behind them from
-- its turn: those of a type that is paused, and those of a type that no living worker knows. They stay pending, in a
-- line that nobody serves: `!type!queue`, which no queue can be called. Answers how many of each type, at most `most` in
-- all. (A queue that is paused as a whole is not touched: its lines rest, see claim.sql.)
-- Safe because it runs under the cell's lock, so that no claim moves the same rows.
-- Lives on pending_tasks_pkey; lines are read whole, and only while there is such a type.

create or replace function park(
    of_types text[],
    in_queues text[],
    most integer,
    at timestamptz default null
) returns table (type text, tasks integer)
language plpgsql volatile
set search_path from current
set enable_bitmapscan = off
set enable_sort = off
set jit = off
as $$
#variable_conflict use_column
declare
    moment constant timestamptz := coalesce(at, clock_timestamp());
    orphans constant text[] := array(
        select o.type from unnest(of_types) as o(type)
        where not exists (select from workers w where o.type = any (w.types)));
    some_are_paused constant boolean := exists (select from pauses z where z.type <> '');
begin
    if orphans = '{}' and not some_are_paused then
        return;
    end if;
    perform pg_advisory_xact_lock(cell_lock());

    return query
    with blocked as materialized (
        select l.queue, l.company_id
        from lines l
        cross join lateral (
            select p.type from pending_tasks p where p.queue = l.queue and p.company_id = l.company_id
            order by p.queue, p.company_id, p.priority, p.run_after, p.task_id limit 1) p
        where l.queue = any (in_queues) and (p.type = any (orphans)
            or some_are_paused and type_is_paused(l.company_id, l.queue, p.type, moment))
        limit most
    ), aside as (
        update pending_tasks t set queue = format('!%s!%s', t.type, t.queue)
        where t.ctid = any (array(
            select h.row_id
            from blocked b
            cross join lateral (
                select p.ctid as row_id, p.type
                from pending_tasks p where p.queue = b.queue and p.company_id = b.company_id
                order by p.queue, p.company_id, p.priority, p.run_after, p.task_id
                limit greatest(most / (select count(*) from blocked), 1)
            ) h
            where h.type = any (orphans) or some_are_paused and type_is_paused(b.company_id, b.queue, h.type, moment)
        ))
        returning t.type
    )
    select a.type, count(*)::integer from aside a group by a.type;
end
$$;

-- Whether tasks of this type are paused in this line.
create or replace function type_is_paused(of_company uuid, in_queue text, of_type text, moment timestamptz)
returns boolean
language sql stable
set search_path from current
as $$
    select exists (
        select from pauses z
        where z.company_id in ('00000000-0000-0000-0000-000000000000', of_company) and z.queue in ('', in_queue)
            and z.type = of_type and (z.until is null or z.until > moment))
$$;

-- Give tasks that were set aside back to their lines, and to the order in which they stood there, once a living worker
-- knows their type and it is not paused, at most `most` of them; answers how many, and in which queues.
-- Lives on pending_tasks_pkey, walked from one company's tasks that were set aside to the next.
create or replace function unpark(
    most integer,
    at timestamptz default null,
    out tasks integer,
    out queues text[]
)
language plpgsql volatile
set search_path from current
set enable_bitmapscan = off
set enable_sort = off
set jit = off
as $$
#variable_conflict use_column
declare
    moment constant timestamptz := coalesce(at, clock_timestamp());
    back tid[];
begin
    with recursive queue as (
        (select p.queue from pending_tasks p order by p.queue, p.company_id, p.priority, p.run_after, p.task_id limit 1)
        union all
        select n.queue from queue q cross join lateral (
            select p.queue from pending_tasks p where p.queue > q.queue
            order by p.queue, p.company_id, p.priority, p.run_after, p.task_id limit 1
        ) n
    ), line as (
        select q.queue, n.company_id from queue q cross join lateral (
            select p.company_id from pending_tasks p where p.queue = q.queue
            order by p.queue, p.company_id, p.priority, p.run_after, p.task_id limit 1
        ) n
        where starts_with(q.queue, '!')
        union all
        select l.queue, n.company_id from line l cross join lateral (
            select p.company_id from pending_tasks p where p.queue = l.queue and p.company_id > l.company_id
            order by p.queue, p.company_id, p.priority, p.run_after, p.task_id limit 1
        ) n
    )
    select array_agg(r.row_id) into back
    from (
        select p.row_id
        from line l
        cross join lateral (
            select p.ctid as row_id from pending_tasks p where p.queue = l.queue and p.company_id = l.company_id
            order by p.queue, p.company_id, p.priority, p.run_after, p.task_id limit most) p
        where exists (select from workers w where split_part(l.queue, '!', 2) = any (w.types))
            and not type_is_paused(l.company_id, split_part(l.queue, '!', 3), split_part(l.queue, '!', 2), moment)
        limit most
    ) r;

    perform join_rotation(p.company_id, array_agg(distinct split_part(p.queue, '!', 3)))
    from pending_tasks p where p.ctid = any (back)
    group by p.company_id order by p.company_id;

    with moved as (
        update pending_tasks p set queue = split_part(p.queue, '!', 3) where p.ctid = any (back) returning p.queue
    )
    select count(*)::integer, coalesce(array_agg(distinct m.queue), '{}') into tasks, queues from moved m;
end
$$;
