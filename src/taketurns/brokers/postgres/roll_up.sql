-- What companies' attempts came to: periods of 10 s, added to by every worker, of 1 min, made of those, and of 1 h, made
-- of minutes. What all companies came to together is kept beside them, under the id of none, from the minute on.
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

-- Make the next minute of its periods of 10 s, 30 s after its end, or, once no minute is to be made, the next hour; and
-- forget at most `most` periods of each length that were kept long enough, hours as long as minutes. Answers whether there
-- may be more to do.
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
    everybody constant uuid := '00000000-0000-0000-0000-000000000000';
    next_hour timestamptz;
    is_over boolean := coalesce(next + interval '90 s' <= moment, false);
    tens integer;
    minutes integer;
    hours integer;
begin
    if is_over then
        with ten as materialized (
            select r.* from rollups r
            where r.seconds = 10 and r.starts_at >= next and r.starts_at < next + interval '1 min'
        ), part as (
            select t.company_id, t.lane, 60 as seconds, next as starts_at, t.completed, t.retried, t.failed, t.waits from ten t
            union all
            select everybody, t.lane, 60, next, t.completed, t.retried, t.failed, t.waits from ten t
            union all
            select everybody, t.lane, 10, t.starts_at, t.completed, t.retried, t.failed, t.waits from ten t
        ), waited as (
            select b.company_id, b.lane, b.seconds, b.starts_at, array_agg(b.count order by b.bucket) as waits
            from (
                select p.company_id, p.lane, p.seconds, p.starts_at, w.bucket, sum(w.count)::integer as count
                from part p cross join lateral unnest(p.waits) with ordinality as w(count, bucket)
                group by p.company_id, p.lane, p.seconds, p.starts_at, w.bucket
            ) b
            group by b.company_id, b.lane, b.seconds, b.starts_at
        )
        insert into rollups (company_id, lane, seconds, starts_at, completed, retried, failed, waits)
        select company_id, lane, seconds, starts_at, p.completed, p.retried, p.failed, coalesce(w.waits, '{}')
        from (
            select p.company_id, p.lane, p.seconds, p.starts_at, sum(p.completed) as completed, sum(p.retried) as retried,
                sum(p.failed) as failed
            from part p group by p.company_id, p.lane, p.seconds, p.starts_at
        ) p
        left join waited w using (company_id, lane, seconds, starts_at)
        order by company_id, lane, seconds, starts_at
        on conflict do nothing;
    else
        next_hour := date_bin('1 hour', (
            select m.starts_at from rollups m
            where m.seconds = 60 and m.starts_at >= greatest(moment - keep_minutes, (
                select r.starts_at + interval '1 hour' from rollups r where r.seconds = 3600
                order by r.starts_at desc limit 1))
            order by m.starts_at limit 1
        ), 'epoch');
        is_over := coalesce(next_hour + interval '1 hour 90 s' <= moment, false);
        if is_over then
            with minute as materialized (
                select r.* from rollups r
                where r.seconds = 60 and r.starts_at >= next_hour and r.starts_at < next_hour + interval '1 hour'
            ), waited as (
                select b.company_id, b.lane, array_agg(b.count order by b.bucket) as waits
                from (
                    select m.company_id, m.lane, w.bucket, sum(w.count)::integer as count
                    from minute m cross join lateral unnest(m.waits) with ordinality as w(count, bucket)
                    group by m.company_id, m.lane, w.bucket
                ) b
                group by b.company_id, b.lane
            )
            insert into rollups (company_id, lane, seconds, starts_at, completed, retried, failed, waits)
            select company_id, lane, 3600, next_hour, m.completed, m.retried, m.failed, coalesce(w.waits, '{}')
            from (
                select m.company_id, m.lane, sum(m.completed) as completed, sum(m.retried) as retried,
                    sum(m.failed) as failed
                from minute m group by m.company_id, m.lane
            ) m
            left join waited w using (company_id, lane)
            order by company_id, lane
            on conflict do nothing;
        end if;
    end if;

    delete from rollups r where r.ctid = any (array(
        select o.ctid from rollups o where o.seconds = 10 and o.starts_at < least(moment - keep_tens, made_until)
        order by o.starts_at limit most for update skip locked));
    get diagnostics tens = row_count;
    delete from rollups r where r.ctid = any (array(
        select o.ctid from rollups o where o.seconds = 60 and o.starts_at < moment - keep_minutes
        order by o.starts_at limit most for update skip locked));
    get diagnostics minutes = row_count;
    delete from rollups r where r.ctid = any (array(
        select o.ctid from rollups o where o.seconds = 3600 and o.starts_at < moment - keep_minutes - interval '1 hour'
        order by o.starts_at limit most for update skip locked));
    get diagnostics hours = row_count;
    return is_over or greatest(tens, minutes, hours) >= most;
end
$$;
