-- The companies that a window is told of: those that have most attempts in it, and those of which most attempts failed.
-- Of each period the `each` with most attempts are looked at, so that one that never is among them may be missed.
-- Costs `each` rows for every period of the window, those in which something failed, and the last minute or two of all
-- companies. Lives on rollups_most_idx, rollups_failed_idx and rollups_seconds_starts_at_idx.
with made as materialized (
    select clock_timestamp() - %(window)s as at,
        coalesce((
            select r.starts_at + interval '1 hour' from rollups r where r.seconds = 3600 order by r.starts_at desc limit 1
        ), '-infinity') as hours_until,
        coalesce((
            select r.starts_at + interval '1 min' from rollups r where r.seconds = 60 order by r.starts_at desc limit 1
        ), '-infinity') as minutes_until
), since as materialized (
    select m.at, case when %(seconds)s = 3600 then greatest(m.at, m.hours_until) else m.at end as minutes_from,
        greatest(m.at, m.minutes_until) as tens_from
    from made m
), late as materialized (
    select r.company_id, sum(r.completed + r.retried + r.failed) as attempts, sum(r.failed) as failed
    from since s
    cross join lateral (
        select r.* from rollups r where r.seconds = 10 and r.starts_at >= s.tens_from and r.lane = 'tasks'
    ) r
    group by r.company_id
), most as (
    select x.company_id, x.attempts
    from since s
    cross join generate_series(date_bin('1 hour', s.at, 'epoch'), clock_timestamp(), interval '1 hour') as hour(at)
    cross join lateral (
        select r.company_id, r.completed + r.retried + r.failed as attempts from rollups r
        where r.seconds = 3600 and r.starts_at = hour.at and r.lane = 'tasks'
        order by r.completed + r.retried + r.failed desc limit %(each)s + 1
    ) x
    where %(seconds)s = 3600
    union all
    select x.company_id, x.attempts
    from since s
    cross join generate_series(date_bin('1 min', s.minutes_from, 'epoch'), clock_timestamp(), interval '1 min') as minute(at)
    cross join lateral (
        select r.company_id, r.completed + r.retried + r.failed as attempts from rollups r
        where r.seconds = 60 and r.starts_at = minute.at and r.lane = 'tasks'
        order by r.completed + r.retried + r.failed desc limit %(each)s + 1
    ) x
    union all
    select l.company_id, l.attempts from late l
), failing as (
    select r.company_id, r.failed
    from since s
    cross join lateral (
        select r.* from rollups r
        where r.seconds = 3600 and r.starts_at >= s.at and r.failed > 0 and r.lane = 'tasks'
    ) r
    where %(seconds)s = 3600
    union all
    select r.company_id, r.failed
    from since s
    cross join lateral (
        select r.* from rollups r
        where r.seconds = 60 and r.starts_at >= s.minutes_from and r.failed > 0 and r.lane = 'tasks'
    ) r
    union all
    select l.company_id, l.failed from late l where l.failed > 0
)
(
    select f.company_id, true as is_failing from failing f where f.company_id <> %(everybody)s
    group by f.company_id order by sum(f.failed) desc, f.company_id limit %(most)s
)
union all
(
    select m.company_id, false from most m where m.company_id <> %(everybody)s
    group by m.company_id order by sum(m.attempts) desc, m.company_id limit %(most)s
)
