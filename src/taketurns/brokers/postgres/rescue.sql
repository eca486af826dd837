-- Take back the tasks of a worker that is gone: pending again, or failed once they were rescued `max_rescues` times,
-- unless another was lost with them that may be what kills workers. The rule is told in taketurns/engine/rescue.py.
-- What was run inline fails at once: who asked for it is gone, and it never had a place in a line.
-- Safe because the worker's lease is locked and must still stand at the beat that the rescuer watched (null: the
-- lease's row must be missing). Removing the lease tells a worker that comes back that its work is not its own.
-- Tasks are locked in the order in which reports of them would be.
-- Lives on workers_pkey; processing_tasks is read whole, for it is as small as the fleet.

create or replace function rescue(
    from_worker uuid,
    watched_beat integer,
    max_rescues integer,
    at timestamptz default null
) returns table (company_id uuid, task_id uuid, type text, queue text, failed boolean)
language plpgsql volatile
set search_path from current
as $$
#variable_conflict use_column
declare
    moment constant timestamptz := coalesce(at, clock_timestamp());
    held_companies uuid[];
    held_tasks uuid[];
    held_queues text[];
begin
    if watched_beat is null then
        if exists (select from workers w where w.id = from_worker) then
            return;
        end if;
    else
        delete from workers w where w.id = from_worker and w.beat = watched_beat;
        if not found then
            return;
        end if;
    end if;

    -- What is claimed for it from here on is left to the next rescue: its companies may not be in the rotation.
    select array_agg(p.company_id), array_agg(p.task_id), array_agg(p.queue)
    into held_companies, held_tasks, held_queues
    from processing_tasks p where p.worker_id = from_worker;

    perform join_rotation(h.company_id, array_agg(distinct h.queue))
    from unnest(held_companies, held_queues) as h(company_id, queue) where h.queue <> '!inline'
    group by h.company_id order by h.company_id;

    perform from processing_tasks p where p.worker_id = from_worker and p.task_id = any (held_tasks)
    order by p.company_id, p.task_id for update;

    return query
    with taken as (
        delete from processing_tasks p where p.worker_id = from_worker and p.task_id = any (held_tasks)
        returning p.*, p.queue = '!inline' as was_inline, p.rescue_count >= 2 as is_suspect
    ), lost as materialized (
        select t.*, t.was_inline or t.rescue_count >= max_rescues and s.suspects = t.is_suspect::integer as fails
        from taken t, (select count(*) filter (where t.is_suspect) as suspects from taken t) s
    ), finished as (
        update tasks t
        set finished_at = moment, started_at = l.claimed_at, stopped_as = 'failed', retry_count = l.retry_count,
            event_number = l.event_number + 1, worker_id = l.worker_id, reserved_at = null,
            error = l.error, error_fingerprint = error_fingerprint(l.error)
        from (
            select l.*, x.reserved_at,
                case when l.was_inline then 'caller lost: the process that ran this task was lost'
                    else rescue_error(max_rescues) end as error
            from lost l join tasks x on x.company_id = l.company_id and x.id = l.task_id
            where l.fails
        ) l
        where t.company_id = l.company_id and t.id = l.task_id
        returning l.company_id, l.reserved_at
    ), refunded as (
        insert into quota_changes (company_id, hour_starts_at, refunded)
        select f.company_id, date_trunc('hour', f.reserved_at, 'UTC'), count(*)
        from finished f where f.reserved_at is not null
        group by 1, 2
    ), remembered as (
        insert into task_events (company_id, task_id, number, kind, at, started_at, worker_id, error)
        select l.company_id, l.task_id, l.event_number + 1, 'rescued', moment, l.claimed_at, l.worker_id,
            'the worker was lost'
        from lost l where not l.fails
    ), waiting as (
        insert into pending_tasks (queue, company_id, priority, run_after, task_id, type, retry_count, rescue_count,
            event_number)
        select l.queue, l.company_id, l.priority, l.run_after, l.task_id, l.type, l.retry_count,
            least(l.rescue_count + 1, max_rescues), l.event_number + 1
        from lost l where not l.fails
    )
    select l.company_id, l.task_id, l.type, l.queue, l.fails
    from (select tell_moves(array_agg(l.company_id), array_agg(l.task_id)) from lost l) told, lost l;
end
$$;

create or replace function rescue_error(max_rescues integer) returns text
language sql immutable
as $$ select format('worker lost: the worker was lost at least %s times while it ran this task', max_rescues + 1) $$;
