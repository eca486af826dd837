-- Forget finished tasks that were kept long enough, at most `most` of them, with their events; expired keys;
-- and watches that are over; and operations that ended 30 days ago.
-- Safe because pruners skip each other's rows, and only finished rows are looked at.
-- Lives on tasks_finished_at_idx (BRIN: it names the blocks that may hold old rows),
-- idempotency_keys_expires_at_idx and watches_until_idx.

create or replace function prune(
    keep_completed interval,
    keep_stopped interval,
    most integer,
    at timestamptz default null
) returns table (tasks integer, keys integer)
language plpgsql volatile
set search_path from current
set enable_seqscan = off
set jit = off
as $$
#variable_conflict use_column
declare
    moment constant timestamptz := coalesce(at, clock_timestamp());
    old tid[];
begin
    select array_agg(o.row_id) into old
    from (
        select t.ctid as row_id from tasks t
        where t.finished_at < moment - least(keep_completed, keep_stopped)
            and t.finished_at < moment - case when t.stopped_as is null then keep_completed else keep_stopped end
        limit most
        for update skip locked
    ) o;

    return query
    with forgotten as (
        delete from tasks t where t.ctid = any (old) returning t.company_id, t.id, t.reserved_at, t.tags, t.unique_key
    ), kept as (
        insert into quota_changes (company_id, hour_starts_at, kept)
        select f.company_id, date_trunc('hour', f.reserved_at, 'UTC'), count(*)
        from forgotten f where f.reserved_at is not null
        group by 1, 2
    ), events as (
        delete from task_events e using forgotten f where e.company_id = f.company_id and e.task_id = f.id
    ), untagged as (
        delete from task_tags g using (select f.company_id, f.id, unnest(f.tags) as tag from forgotten f) f
        where g.company_id = f.company_id and g.tag = f.tag and g.task_id = f.id
    ), freed as (
        delete from unique_keys u using forgotten f
        where u.company_id = f.company_id and u.key = f.unique_key and u.task_id = f.id
    ), expired as (
        delete from idempotency_keys k
        where k.ctid = any (array(
            select x.ctid from idempotency_keys x where x.expires_at <= moment order by x.expires_at limit most
            for update skip locked))
        returning 1
    ), unwatched as (
        delete from watches w
        where w.ctid = any (array(select x.ctid from watches x where x.until <= moment for update skip locked))
    ), unheard as (
        delete from heartbeats h
        where h.beat_at < moment - case h.kind when 'worker' then interval '7 days' else interval '90 days' end
    ), over as (
        delete from operations o
        where o.ctid = any (array(
            select x.ctid from operations x where x.finished_at < moment - interval '30 days'
            order by x.finished_at limit most
            for update skip locked))
    ), idle as (
        delete from budgets b
        where b.ctid = any (array(select x.ctid from budgets x where x.idle_at < moment limit most for update skip locked))
    )
    select (select count(*)::integer from forgotten), (select count(*)::integer from expired);
end
$$;
