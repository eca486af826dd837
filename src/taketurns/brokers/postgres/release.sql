-- Give claimed tasks back unstarted, with no penalty: pending, where they stood in their company's line.
-- Safe because the claim's token must still stand on the row; whoever moved it since then has won.
-- Lives on processing_tasks_pkey.

create or replace function release(
    companies uuid[],
    task_ids uuid[],
    claim_tokens uuid[],
    at timestamptz default null
) returns table (company_id uuid, task_id uuid)
language plpgsql volatile
set search_path from current
set enable_seqscan = off
set enable_hashjoin = off
set enable_mergejoin = off
as $$
#variable_conflict use_column
declare
    moment constant timestamptz := coalesce(at, clock_timestamp());
begin
    perform join_rotation(p.company_id, array_agg(distinct p.queue))
    from unnest(companies, task_ids) as r(company_id, task_id)
    join processing_tasks p on p.company_id = r.company_id and p.task_id = r.task_id
    group by p.company_id order by p.company_id;

    return query
    with released as (
        delete from processing_tasks p
        using unnest(companies, task_ids, claim_tokens) as r(company_id, task_id, claim_token)
        where p.company_id = r.company_id and p.task_id = r.task_id and p.claim_token = r.claim_token
        returning p.*
    ), remembered as (
        insert into task_events (company_id, task_id, number, kind, at, started_at, worker_id)
        select r.company_id, r.task_id, r.event_number + 1, 'released', moment, r.claimed_at, r.worker_id
        from released r
    ), waiting as (
        insert into pending_tasks (queue, company_id, priority, run_after, task_id, type, retry_count, rescue_count,
            event_number)
        select r.queue, r.company_id, r.priority, r.run_after, r.task_id, r.type, r.retry_count, r.rescue_count,
            r.event_number + 1
        from released r
    )
    select r.company_id, r.task_id
    from (select tell_moves(array_agg(r.company_id), array_agg(r.task_id)) from released r) told, released r;
end
$$;
