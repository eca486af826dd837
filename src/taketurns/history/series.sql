-- What attempts came to, by company and by step of time: whole hours from the rows of hours where `seconds` is 3600, what
-- came after them from the minutes where it is 60 or more, and the rest from those of ten seconds. `everybody` among the
-- companies is all of them together.
-- Costs as many rows as the window has periods for each company that is named, whatever the history; of all companies
-- only the last minute or two are added up. Lives on rollups_pkey and rollups_seconds_starts_at_idx.
with made as materialized (
    select date_bin(%(step)s, clock_timestamp() - %(window)s, 'epoch') as at,
        coalesce((
            select r.starts_at + interval '1 hour' from rollups r where r.seconds = 3600 order by r.starts_at desc limit 1
        ), '-infinity') as hours_until,
        coalesce((
            select r.starts_at + interval '1 min' from rollups r where r.seconds = 60 order by r.starts_at desc limit 1
        ), '-infinity') as minutes_until
), tier as materialized (
    select 3600 as seconds, m.at as starts_at from made m where %(seconds)s = 3600
    union all
    select 60, case when %(seconds)s = 3600 then greatest(m.at, m.hours_until) else m.at end
    from made m where %(seconds)s >= 60
    union all
    select 10, case when %(seconds)s >= 60 then greatest(m.at, m.minutes_until) else m.at end from made m
), period as (
    select c.id as company_id, date_bin(%(step)s, r.starts_at, 'epoch') as at, r.completed, r.retried, r.failed, r.waits
    from unnest(%(companies)s::uuid[]) as c(id)
    cross join tier t
    cross join lateral (
        select r.* from rollups r
        where r.company_id = c.id and r.lane = 'tasks' and r.seconds = t.seconds and r.starts_at >= t.starts_at
    ) r
    union all
    select %(everybody)s::uuid, date_bin(%(step)s, r.starts_at, 'epoch'), r.completed, r.retried, r.failed, r.waits
    from made m
    cross join lateral (
        select r.* from rollups r
        where r.seconds = 10 and r.starts_at >= greatest(m.at, m.minutes_until) and r.lane = 'tasks'
    ) r
    where %(everybody)s::uuid = any (%(companies)s::uuid[])
), attempts as (
    select p.company_id, p.at, sum(p.completed)::bigint as completed, sum(p.retried)::bigint as retried,
        sum(p.failed)::bigint as failed
    from period p group by p.company_id, p.at
), waited as (
    select b.company_id, b.at, array_agg(b.count order by b.bucket) as waits
    from (
        select p.company_id, p.at, w.bucket, sum(w.count)::bigint as count
        from period p cross join lateral unnest(p.waits) with ordinality as w(count, bucket)
        group by p.company_id, p.at, w.bucket
    ) b
    group by b.company_id, b.at
)
select a.company_id, a.at, a.completed, a.retried, a.failed, coalesce(w.waits, '{}')
from attempts a left join waited w using (company_id, at)
order by a.at
