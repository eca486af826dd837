-- What workers do now, and what ended lately: one row for each attempt, the newest first, `most` of those that ended.
-- Lives on tasks_finished_at_idx; what workers hold is read whole, up to `most`.
(
    select p.company_id, p.task_id, p.type, p.worker_id, p.claimed_at as started_at, null::timestamptz as finished_at,
        'processing' as status
    from processing_tasks p where p.queue <> '!inline'
    order by p.claimed_at desc limit %(most)s
)
union all
(
    select t.company_id, t.id, t.type, t.worker_id, t.started_at, t.finished_at, coalesce(t.stopped_as, 'completed')
    from tasks t
    where t.finished_at > clock_timestamp() - %(lately)s and t.started_at is not null and t.worker_id is not null
    order by t.finished_at desc limit %(most)s
)
