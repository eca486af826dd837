-- What attempts came to, by company and by step of time: whole minutes from the rows of minutes, what came after them from
-- those of ten seconds. `companies` null means every one.
-- Costs as much as the window has rows, whatever the history. Lives on rollups_seconds_starts_at_idx, or on rollups_pkey.
with since as (
    select date_bin(%(step)s, clock_timestamp() - %(window)s, 'epoch') as at,
        (
            select coalesce(max(x.starts_at) + interval '1 min', '-infinity')
            from (select r.starts_at from rollups r where r.seconds = 60 order by r.starts_at desc limit 1) x
        ) as minutes_until
), period as (
    select r.company_id, date_bin(%(step)s, r.starts_at, 'epoch') as at, r.completed, r.retried, r.failed, r.waits
    from since s, rollups r
    where r.lane = 'tasks' and r.seconds = %(seconds)s and r.starts_at >= s.at
        and (%(companies)s::uuid[] is null or r.company_id = any (%(companies)s))
    union all
    select r.company_id, date_bin(%(step)s, r.starts_at, 'epoch'), r.completed, r.retried, r.failed, r.waits
    from since s, rollups r
    where %(seconds)s = 60 and r.lane = 'tasks' and r.seconds = 10
        and r.starts_at >= greatest(s.at, s.minutes_until)
        and (%(companies)s::uuid[] is null or r.company_id = any (%(companies)s))
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
