-- Make scheduled tasks that are due pending, at most `most` of them, and tell when the next one is due.
-- Safe because promoters skip each other's rows.
-- Lives on scheduled_tasks_run_after_idx.

create or replace function promote(
    most integer,
    at timestamptz default null
) returns table (promoted integer, queues text[], next_due timestamptz)
language plpgsql volatile
set search_path from current
set plan_cache_mode = force_generic_plan
set enable_seqscan = off
set enable_bitmapscan = off
set jit = off
as $$
#variable_conflict use_column
declare
    moment constant timestamptz := coalesce(at, clock_timestamp());
    due tid[];
begin
    select array_agg(d.row_id) into due
    from (
        select s.ctid as row_id from scheduled_tasks s
        where s.run_after <= moment order by s.run_after limit most
        for update skip locked
    ) d;

    perform join_rotation(s.company_id, array_agg(distinct s.queue))
    from scheduled_tasks s where s.ctid = any (due)
    group by s.company_id order by s.company_id;

    return query
    with moved as (
        delete from scheduled_tasks s where s.ctid = any (due) returning s.*
    ), waiting as (
        insert into pending_tasks (queue, company_id, priority, run_after, task_id, type, retry_count, rescue_count,
            event_number)
        select m.queue, m.company_id, m.priority, m.run_after, m.task_id, m.type, m.retry_count, m.rescue_count,
            m.event_number
        from moved m
    )
    select count(*)::integer, array_agg(distinct m.queue),
        (select s.run_after from scheduled_tasks s where s.run_after > moment order by s.run_after limit 1)
    from (select tell_moves(array_agg(m.company_id), array_agg(m.task_id)) from moved m) told, moved m;
end
$$;
