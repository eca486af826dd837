-- How it stands with a company: what it has waiting and running now, and what its attempts came to in a window.
-- Costs the same whatever the history and the backlog: at most `most` rows of a place are counted, and the window is
-- read from one row of every 10 s up to an hour, and from one of every minute beyond.
-- Lives on the (company_id, task_id) index of each place, on rollups_pkey and on rollups_seconds_starts_at_idx; the
-- workers, what they hold, and up to `most` lines are read for the share.

create or replace function stats(
    of_company text,
    window_seconds double precision,
    period_seconds integer,
    most integer,
    at timestamptz default null
) returns table (
    company_id uuid,
    now timestamptz,
    backlog bigint,
    oldest_age double precision,
    scheduled bigint,
    in_flight bigint,
    fair_share bigint,
    since timestamptz,
    seconds double precision,
    lane text,
    completed bigint,
    retried bigint,
    failed bigint,
    waits bigint[]
)
language sql stable
set search_path from current
set enable_seqscan = off
set enable_bitmapscan = off
set jit = off
as $$
    with moment as materialized (
        select coalesce(stats.at, clock_timestamp()) as now
    ), company as materialized (
        select c.id, c.weight from companies c where c.id = (select company_id(of_company))
    ), pending as (
        select count(*) as tasks, min(p.run_after) as oldest
        from company c
        cross join lateral (
            select p.run_after from pending_tasks p where p.company_id = c.id
            order by p.company_id, p.task_id limit most + 1) p
    ), scheduled as (
        select count(*) as tasks
        from company c
        cross join lateral (
            select from scheduled_tasks s where s.company_id = c.id order by s.company_id, s.task_id limit most + 1) s
    ), running as materialized (
        select p.company_id, count(*) as hands from processing_tasks p where p.queue <> '!inline' group by p.company_id
    ), content as materialized (
        select r.company_id, r.hands
        from running r
        where r.company_id not in (select c.id from company c)
            and (
                not exists (select from pending_tasks p where p.company_id = r.company_id)
                or not exists (
                    select from lines l join companies k on k.id = l.company_id
                    where l.company_id = r.company_id and l.rests_place is null and not k.paused))
    ), sharing as (
        select s.company_id from (select distinct l.company_id from lines l where l.rests_place is null limit most) s
        where s.company_id not in (select t.company_id from content t)
        union select c.id from company c
    ), share as (
        select sum(k.weight) as weights, greatest((select coalesce(sum(w.concurrency), 0) from workers w)
                - (select coalesce(sum(t.hands), 0) from content t), 0) as hands
        from sharing s
        cross join lateral (select k.weight from companies k where k.id = s.company_id and not k.paused offset 0) k
    ), since as (
        select date_bin(make_interval(secs => period_seconds), m.now - make_interval(secs => window_seconds), 'epoch') as at,
            (
                select coalesce(max(x.starts_at) + interval '1 min', '-infinity')
                from (select r.starts_at from rollups r where r.seconds = 60 order by r.starts_at desc limit 1) x
            ) as minutes_until
        from moment m
    ), period as materialized (
        select r.*
        from company c cross join since s
        cross join (values ('tasks'), ('jobs')) as l(lane)
        cross join lateral (
            select r.* from rollups r
            where r.company_id = c.id and r.lane = l.lane and r.seconds = period_seconds and r.starts_at >= s.at
            union all
            select r.* from rollups r
            where r.company_id = c.id and r.lane = l.lane and r.seconds = 10 and period_seconds = 60
                and r.starts_at >= greatest(s.at, s.minutes_until)
        ) r
    ), attempts as (
        select p.lane, sum(p.completed) as completed, sum(p.retried) as retried, sum(p.failed) as failed
        from period p group by p.lane
    ), waited as (
        select b.lane, array_agg(b.count order by b.bucket) as waits
        from (
            select p.lane, w.bucket, sum(w.count) as count
            from period p cross join lateral unnest(p.waits) with ordinality as w(count, bucket)
            group by p.lane, w.bucket
        ) b
        group by b.lane
    )
    select c.id, m.now, p.tasks,
        case when p.tasks > 0 then greatest(extract(epoch from m.now - p.oldest), 0)::float8 end, s.tasks,
        coalesce((select r.hands from running r where r.company_id = c.id), 0),
        coalesce(ceil(h.hands * c.weight / greatest(h.weights, c.weight)::numeric), 0)::bigint,
        n.at, extract(epoch from m.now - n.at)::float8, a.lane, a.completed, a.retried, a.failed, w.waits
    from company c cross join moment m cross join pending p cross join scheduled s cross join share h cross join since n
    left join attempts a on true
    left join waited w on w.lane = a.lane
$$;
