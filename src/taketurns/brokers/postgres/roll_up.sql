-- What companies' attempts came to: periods of 10 s, added to by every worker, and of 1 min, made of those.
-- Safe because workers and upkeep write in the order of the key, so that none waits for another in a circle, and
-- because a period is only added to while it lasts, save for a statement that is under way: what minutes are made of
-- has come to its end. Lives on rollups_pkey and rollups_seconds_starts_at_idx.

-- Two counts by bucket, added up.
create or replace function added(a integer[], b integer[]) returns integer[]
language sql immutable
as $$
    select array(
        select coalesce(x.a, 0) + coalesce(x.b, 0) from unnest(a, b) with ordinality as x(a, b, bucket) order by x.bucket)
$$;

-- Add what a worker settled of one lane to the current period. Answers the companies, and which of them are noisy: more
-- than `many` of their tasks wait. One that is gone is left out.
create or replace function tell_attempts(
    of_lane text,
    companies uuid[],
    of_completed integer[],
    of_retried integer[],
    of_failed integer[],
    of_waits text[],
    many integer,
    at timestamptz default null
) returns table (company_id uuid, is_noisy boolean)
language sql volatile
set search_path from current
set enable_seqscan = off
set enable_bitmapscan = off
set jit = off
as $$
    with told as (
        insert into rollups as r (company_id, lane, seconds, starts_at, completed, retried, failed, waits)
        select c.id, of_lane, 10, date_bin('10 s', coalesce(at, clock_timestamp()), 'epoch'),
            t.completed, t.retried, t.failed, t.waits::integer[]
        from unnest(companies, of_completed, of_retried, of_failed, of_waits)
            as t(company_id, completed, retried, failed, waits)
        join companies c on c.id = t.company_id
        order by c.id
        on conflict (company_id, lane, seconds, starts_at) do update
        set completed = r.completed + excluded.completed, retried = r.retried + excluded.retried,
            failed = r.failed + excluded.failed, waits = added(r.waits, excluded.waits)
        returning r.company_id
    )
    select t.company_id, exists (
        select from pending_tasks p where p.company_id = t.company_id
        order by p.company_id, p.task_id offset many limit 1)
    from told t
$$;

-- Make the next minute of its periods of 10 s, 30 s after its end, and forget at most `most` periods of each length that
-- were kept long enough. Answers whether there may be more to do.
create or replace function roll_up(
    keep_tens interval,
    keep_minutes interval,
    most integer,
    at timestamptz default null
) returns boolean
language plpgsql volatile
set search_path from current
set enable_seqscan = off
set enable_bitmapscan = off
set jit = off
as $$
#variable_conflict use_column
declare
    moment constant timestamptz := coalesce(at, clock_timestamp());
    made_until constant timestamptz := greatest(moment - keep_minutes, (
        select r.starts_at + interval '1 min' from rollups r where r.seconds = 60 order by r.starts_at desc limit 1));
    next constant timestamptz := date_bin('1 min', (
        select r.starts_at from rollups r where r.seconds = 10 and r.starts_at >= made_until order by r.starts_at limit 1
    ), 'epoch');
    is_over constant boolean := coalesce(next + interval '90 s' <= moment, false);
    tens integer;
    minutes integer;
begin
    if is_over then
        with ten as materialized (
            select r.* from rollups r
            where r.seconds = 10 and r.starts_at >= next and r.starts_at < next + interval '1 min'
        ), waited as (
            select b.company_id, b.lane, array_agg(b.count order by b.bucket) as waits
            from (
                select t.company_id, t.lane, w.bucket, sum(w.count)::integer as count
                from ten t cross join lateral unnest(t.waits) with ordinality as w(count, bucket)
                group by t.company_id, t.lane, w.bucket
            ) b
            group by b.company_id, b.lane
        )
        insert into rollups (company_id, lane, seconds, starts_at, completed, retried, failed, waits)
        select t.company_id, t.lane, 60, next, t.completed, t.retried, t.failed, coalesce(w.waits, '{}')
        from (
            select t.company_id, t.lane, sum(t.completed) as completed, sum(t.retried) as retried,
                sum(t.failed) as failed
            from ten t group by t.company_id, t.lane
        ) t
        left join waited w on w.company_id = t.company_id and w.lane = t.lane
        order by t.company_id, t.lane
        on conflict do nothing;
    end if;

    delete from rollups r where r.ctid = any (array(
        select o.ctid from rollups o where o.seconds = 10 and o.starts_at < least(moment - keep_tens, made_until)
        order by o.starts_at limit most for update skip locked));
    get diagnostics tens = row_count;
    delete from rollups r where r.ctid = any (array(
        select o.ctid from rollups o where o.seconds = 60 and o.starts_at < moment - keep_minutes
        order by o.starts_at limit most for update skip locked));
    get diagnostics minutes = row_count;
    return is_over or greatest(tens, minutes) >= most;
end
$$;
