-- The arithmetic of rates, as taketurns/engine/rate.py tells it, and the names are the same: one start is `seconds` *
-- 1,000,000 units of what a bucket owes, and each microsecond gives `tasks` of them back.
-- Buckets are read and written by claims alone, under the cell's lock, which makes them exact. A claim that started a
-- company's tasks adds a row to its bucket and takes the one before away: the newest is met first, from the end,
-- however many dead ones an old snapshot keeps.

create or replace function owed(tasks bigint, seconds bigint, burst bigint, bucket buckets, moment timestamptz)
returns bigint
language sql immutable
as $$
    select case
        when bucket.company_id is null or extract(epoch from bucket.at - moment) * 1000000 > burst * start / tasks then 0
        else greatest(0, least(burst * start, case when bucket.seconds = owed.seconds then bucket.owed
                else (bucket.owed + bucket.seconds * 1000000::bigint - 1) / (bucket.seconds * 1000000::bigint) * start end)
            - tasks * least(burst * start / tasks + 1,
                greatest(0, extract(epoch from moment - bucket.at) * 1000000)::bigint))
        end
    from (select seconds * 1000000 as start) s
$$;

create or replace function starts_left(tasks bigint, seconds bigint, burst bigint, owes bigint) returns integer
language sql immutable
as $$ select (greatest(burst * seconds * 1000000 - owes, 0) / (seconds * 1000000))::integer $$;

create or replace function may_start_at(tasks bigint, seconds bigint, burst bigint, owes bigint, moment timestamptz)
returns timestamptz
language sql stable
as $$
    select moment + ((greatest(owes - (burst - 1) * seconds * 1000000, 0) + tasks - 1) / tasks) * interval '1 microsecond'
$$;

-- What a company owes now. Lives on buckets_pkey.
create or replace function owes(of_company uuid, tasks bigint, seconds bigint, burst bigint, moment timestamptz)
returns bigint
language sql stable
set search_path from current
as $$
    select owed(tasks, seconds, burst, b, moment)
    from (select 1) always
    left join lateral (
        select b from buckets b where b.company_id = of_company order by b.company_id desc, b.number desc limit 1
    ) newest(b) on true
$$;

-- What these companies started in a claim is owed.
create or replace function spend(companies uuid[], started integer[], moment timestamptz) returns void
language plpgsql volatile
set search_path from current
as $$
begin
    with spent as materialized (
        select c.id, coalesce(b.number, 0) as number, c.rate_seconds,
            owed(c.rate_tasks, c.rate_seconds, c.rate_burst, b, moment)
                + h.started * c.rate_seconds * 1000000::bigint as owed
        from unnest(companies, started) as h(company_id, started)
        cross join lateral (
            select c.* from companies c where c.id = h.company_id and c.rate_tasks is not null offset 0) c
        left join lateral (
            select b.* from buckets b where b.company_id = c.id order by b.company_id desc, b.number desc limit 1
        ) b on true
        where h.started > 0
    ), gone as (
        delete from buckets b using spent s where b.company_id = s.id and b.number = s.number
    )
    insert into buckets (company_id, number, owed, seconds, at)
    select s.id, s.number + 1, s.owed, s.rate_seconds, moment from spent s;
end
$$;
