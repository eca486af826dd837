-- What workers do now, and what ended lately: one row for each attempt, the newest first, `most` of those that ended.
-- No index knows when tasks have ended. Those that did a moment ago are among the newest of a company, or, where it has a
-- line, right before the task at its head: `each` of both are looked at, and more where there are few companies, of up to
-- `companies` companies and lines that have had work lately. What a company did beyond that is left out.
-- Lives on tasks_pkey, lines_pkey, pending_tasks_pkey and rollups_seconds_starts_at_idx; what workers hold is read whole,
-- up to `most`.
with active as materialized (
    select a.company_id
    from (
        select distinct p.company_id from processing_tasks p where p.queue <> '!inline'
        union
        select l.company_id from (select l.company_id from lines l limit %(companies)s) l
        union
        select r.company_id from rollups r
        where r.seconds = 10 and r.starts_at > clock_timestamp() - interval '1 min' and r.lane = 'tasks'
    ) a
    limit %(companies)s
), head as materialized (
    select l.company_id, h.task_id
    from (
        select l.company_id, l.queue from active a join lines l on l.company_id = a.company_id limit %(companies)s
    ) l
    cross join lateral (
        select p.task_id from pending_tasks p where p.queue = l.queue and p.company_id = l.company_id
        order by p.queue, p.company_id, p.priority, p.run_after, p.task_id limit 1
    ) h
), width as materialized (
    select greatest(%(each)s, %(most)s / greatest(count(*), 1)) as each from active
), looked_at as (
    select t.*
    from active a
    cross join lateral (
        select t.company_id, t.id, t.type, t.worker_id, t.started_at, t.finished_at, t.stopped_as
        from tasks t where t.company_id = a.company_id
        order by t.company_id desc, t.id desc limit (select w.each from width w)
    ) t
    union
    select t.*
    from head h
    cross join lateral (
        select t.company_id, t.id, t.type, t.worker_id, t.started_at, t.finished_at, t.stopped_as
        from tasks t where t.company_id = h.company_id and t.id < h.task_id
        order by t.company_id desc, t.id desc limit (select w.each from width w)
    ) t
)
(
    select p.company_id, p.task_id, p.type, p.worker_id, p.claimed_at as started_at, null::timestamptz as finished_at,
        'processing' as status
    from processing_tasks p where p.queue <> '!inline'
    order by p.claimed_at desc limit %(most)s
)
union all
(
    select t.company_id, t.id, t.type, t.worker_id, t.started_at, t.finished_at, coalesce(t.stopped_as, 'completed')
    from looked_at t
    where t.finished_at > clock_timestamp() - %(lately)s and t.started_at is not null and t.worker_id is not null
    order by t.finished_at desc limit %(most)s
)
