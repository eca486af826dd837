-- How many tasks are in each status, and for how many seconds the oldest pending one that may run has been due.
-- Costs the same whatever the history and the backlog: at most `most` rows of a table are counted, and at most `most`
-- heads of (queue, company, priority) are looked at. With more records than that, finished ones are estimated from
-- the planner's statistics.
-- Lives on pending_tasks_pkey, walked from head to head.
with recursive few as (
    select count(*) as records,
        count(*) filter (where t.finished_at is not null and t.stopped_as is null) as completed,
        count(*) filter (where t.stopped_as = 'failed') as failed,
        count(*) filter (where t.stopped_as = 'cancelled') as cancelled
    from (select t.finished_at, t.stopped_as from tasks t limit %(most)s + 1) t
), statistics as (
    select greatest((select c.reltuples from pg_class c where c.oid = 'tasks'::regclass), 0)::float8 as records,
        coalesce(max(1 - s.null_frac) filter (where s.attname = 'finished_at'), 0) as finished,
        coalesce(sum(stopped.share) filter (where stopped.value = 'failed'), 0) as failed,
        coalesce(sum(stopped.share) filter (where stopped.value = 'cancelled'), 0) as cancelled
    from pg_stats s
    left join lateral unnest(s.most_common_vals::text::text[], s.most_common_freqs) as stopped(value, share)
        on s.attname = 'stopped_as'
    where s.schemaname = current_schema() and s.tablename = 'tasks' and s.attname in ('finished_at', 'stopped_as')
), head as (
    (
        select p.queue, p.company_id, p.priority, p.run_after from pending_tasks p
        order by p.queue, p.company_id, p.priority, p.run_after, p.task_id limit 1
    )
    union all
    select n.queue, n.company_id, n.priority, n.run_after
    from head h cross join lateral (
        select p.queue, p.company_id, p.priority, p.run_after from pending_tasks p
        where (p.queue, p.company_id, p.priority) > (h.queue, h.company_id, h.priority)
        order by p.queue, p.company_id, p.priority, p.run_after, p.task_id limit 1
    ) n
)
select
    (select count(*) from (select from scheduled_tasks limit %(most)s) x),
    (select count(*) from (select from pending_tasks limit %(most)s) x),
    (select count(*) from (select from processing_tasks limit %(most)s) x),
    case when f.records <= %(most)s then f.completed
        else greatest(s.records * (s.finished - s.failed - s.cancelled), 0) end,
    case when f.records <= %(most)s then f.failed else s.records * s.failed end,
    case when f.records <= %(most)s then f.cancelled else s.records * s.cancelled end,
    (
        select extract(epoch from clock_timestamp() - min(h.run_after))::float8
        from (select h.company_id, h.run_after from head h limit %(most)s) h
        join companies c on c.id = h.company_id and not c.paused
    )
from few f, statistics s
