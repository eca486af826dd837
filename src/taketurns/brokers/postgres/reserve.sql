-- Reserve from a company's quotas, in the transaction that stores what is submitted.
--
-- A company with a quota for any period has its tasks counted in all three. What stands in `quota_usage` is moved by
-- `reserve` and `tally` alone, under the company's quota lock. Whoever gives something back writes a row of its own to
-- `quota_changes`, waits for nobody and makes nobody wait; what such rows say counts from their commit on.
-- See decisions/0009-what-is-given-back-waits-for-nobody.md.

-- Held by whoever reserves from a company's quotas, until it commits.
create or replace function quota_lock(of_company uuid) returns bigint
language sql stable
set search_path from current
as $$ select hashtextextended('quota' || current_schema() || of_company::text, 0) $$;

-- The periods of a moment, and how much of each was reserved and given back.
-- Lives on companies_pkey, quota_usage_pkey and quota_changes_pkey.
create or replace function allowances(of_company uuid, moment timestamptz) returns table (
    period text,
    starts_at timestamptz,
    ends_at timestamptz,
    seconds_left double precision,
    quota integer,
    reserved bigint,
    refunded bigint
)
language sql stable
set search_path from current
set enable_seqscan = off
as $$
    select p.period, p.starts_at, p.ends_at, extract(epoch from p.ends_at - moment)::double precision, p.quota,
        coalesce(u.reserved, 0), coalesce(u.refunded, 0) + coalesce(x.refunded, 0)
    from (
        select q.period, q.quota, date_trunc(q.period, moment, 'UTC') as starts_at,
            date_add(date_trunc(q.period, moment, 'UTC'), ('1 ' || q.period)::interval, 'UTC') as ends_at
        from companies c
        cross join lateral (
            values ('hour', c.hourly_quota), ('day', c.daily_quota), ('month', c.monthly_quota)) as q(period, quota)
        where c.id = of_company
    ) p
    left join quota_usage u on u.company_id = of_company and u.period = p.period and u.starts_at = p.starts_at
    left join lateral (
        select sum(c.refunded)::bigint as refunded from quota_changes c
        where c.company_id = of_company and c.hour_starts_at >= p.starts_at and c.hour_starts_at < p.ends_at
    ) x on true
    order by p.ends_at, p.starts_at desc
$$;

-- Whether all quotas have room, and how they stand, for whoever submits.
create or replace function look_at_quotas(
    of_company uuid,
    wanted integer,
    moment timestamptz,
    out has_room boolean,
    out told text
)
language sql stable
set search_path from current
as $$
    select bool_and(a.quota is null or a.reserved - a.refunded + wanted <= a.quota),
        jsonb_build_object('wanted', wanted, 'allowances', jsonb_agg(to_jsonb(a)))::text
    from allowances(of_company, moment) a
$$;

-- Reserve for so many tasks, in all periods or in none: `reserved`, `refused`, or `busy` when another transaction
-- kept the company's quotas for longer than the timeout, or for its part waits for what this one keeps.
-- It comes last in its transaction, for nobody else reserves for the company until that ends. Nobody waits here for
-- any lock but that one, and a transaction that waited in vain can go on.
create or replace function reserve(
    of_company uuid,
    wanted integer,
    moment timestamptz,
    out outcome text,
    out told text
)
language plpgsql volatile
set search_path from current
set lock_timeout = '2s'
set enable_seqscan = off
set jit = off
as $$
begin
    begin
        perform pg_advisory_xact_lock(quota_lock(of_company));
    exception when lock_not_available or deadlock_detected then
        outcome := 'busy';
        return;
    end;

    with period as materialized (
        select * from allowances(of_company, moment)
    ), taken as (
        insert into quota_usage as u (company_id, period, starts_at, reserved)
        select of_company, p.period, p.starts_at, wanted from period p
        where (select bool_and(p.quota is null or p.reserved - p.refunded + wanted <= p.quota) from period p)
        on conflict (company_id, period, starts_at) do update set reserved = u.reserved + excluded.reserved
        returning u.period, u.reserved
    )
    select case when count(t.period) > 0 then 'reserved' else 'refused' end,
        jsonb_build_object('wanted', wanted, 'allowances', jsonb_agg(
            to_jsonb(p) || jsonb_build_object('reserved', coalesce(t.reserved, p.reserved))
            order by p.ends_at, p.starts_at desc))::text
    into outcome, told
    from period p left join taken t on t.period = p.period;
end
$$;

-- The same for whoever calls it alone, by an error when nothing was reserved.
create or replace function reserve_or_raise(of_company uuid, wanted integer, moment timestamptz) returns text
language plpgsql volatile
set search_path from current
as $$
declare
    reservation record;
begin
    select * into reservation from reserve(of_company, wanted, moment);
    if reservation.outcome = 'refused' then
        raise exception 'a quota of company % is used up', of_company
            using errcode = 'TQ001', detail = reservation.told;
    elsif reservation.outcome = 'busy' then
        raise exception 'another transaction keeps the quotas of company %', of_company
            using errcode = 'TQ002';
    end if;
    return reservation.told;
end
$$;
