-- Report how claimed tasks ended: completed, failed, cancelled, or scheduled again after a delay: for another attempt
-- (retry), or for this attempt at a later time, with no penalty (deferred).
-- Safe because each report names its claim's token: a task that was rescued, cancelled or claimed again since then
-- is not found, and is missing from the answer. Reports come sorted by (company, task), so that two settlements lock
-- in one order. What a task that failed for good was charged is given back: see reserve.sql.
-- Lives on processing_tasks_pkey and tasks_pkey: each row is looked up by itself (`offset 0` keeps the planner from
-- turning the join around), whatever the statistics say.

create or replace function settle(
    companies uuid[],
    task_ids uuid[],
    claim_tokens uuid[],
    outcomes text[],
    results text[],
    errors text[],
    delays double precision[],
    at timestamptz default null
) returns setof uuid
language sql volatile
set search_path from current
set plan_cache_mode = force_generic_plan
set enable_seqscan = off
set enable_bitmapscan = off
set enable_hashjoin = off
set enable_mergejoin = off
set enable_memoize = off
set jit = off
as $$
    with ended as (
        delete from processing_tasks p
        using (
            select x.row_id, r.outcome, r.result, r.error, r.delay
            from unnest(companies, task_ids, claim_tokens, outcomes, results, errors, delays)
                as r(company_id, task_id, claim_token, outcome, result, error, delay)
            cross join lateral (
                select p.ctid as row_id from processing_tasks p
                where p.company_id = r.company_id and p.task_id = r.task_id and p.claim_token = r.claim_token
                offset 0) x
        ) r
        where p.ctid = r.row_id
        returning p.*, r.outcome, r.result, r.error, r.delay, coalesce(at, statement_timestamp()) as now
    ), finished as (
        update tasks t
        set finished_at = e.now, started_at = e.claimed_at, stopped_as = nullif(e.outcome, 'completed'),
            retry_count = e.retry_count, event_number = e.event_number + 1, worker_id = e.worker_id,
            result = e.result::json, error = e.error,
            error_fingerprint = case when e.outcome = 'failed' then error_fingerprint(coalesce(e.error, '')) end,
            reserved_at = case when e.outcome <> 'failed' then t.reserved_at end
        from (
            select e.*, x.row_id
            from ended e
            cross join lateral (
                select t.ctid as row_id from tasks t where t.company_id = e.company_id and t.id = e.task_id offset 0) x
            where e.outcome not in ('retry', 'deferred')
        ) e
        where t.ctid = e.row_id
    ), refunded as (
        insert into quota_changes (company_id, hour_starts_at, refunded)
        select e.company_id, date_trunc('hour', t.reserved_at, 'UTC'), count(*)
        from ended e
        cross join lateral (
            select t.reserved_at from tasks t where t.company_id = e.company_id and t.id = e.task_id offset 0) t
        where e.outcome = 'failed' and t.reserved_at is not null
        group by 1, 2
    ), remembered as (
        insert into task_events (company_id, task_id, number, kind, at, started_at, run_after, worker_id, error)
        select e.company_id, e.task_id, e.event_number + 1, case e.outcome when 'retry' then 'retried' else e.outcome end,
            e.now, e.claimed_at, e.now + make_interval(secs => e.delay), e.worker_id, e.error
        from ended e where e.outcome in ('retry', 'deferred')
    ), scheduled as (
        insert into scheduled_tasks (company_id, task_id, queue, run_after, priority, type, retry_count, rescue_count,
            event_number)
        select e.company_id, e.task_id, e.queue, e.now + make_interval(secs => e.delay), e.priority, e.type,
            e.retry_count + (e.outcome = 'retry')::integer, e.rescue_count, e.event_number + 1
        from ended e where e.outcome in ('retry', 'deferred')
    )
    select e.task_id
    from ended e, (
        select case when t.tasks > 0 and somebody_watches() then (
            select tell_moves(array_agg(e.company_id), array_agg(e.task_id)) from ended e) end
        from (select count(*) as tasks from ended) t
        offset 0) told
$$;
