-- Keep the counts of quotas in order: add up what was written beside them, forget old periods, compare with the rows.
-- Safe because it changes a company's counts under the company's quota lock, which it never waits for.

-- Take at most `most` companies' changes into their counts; answers of how many.
-- Lives on quota_changes_pkey, walked company by company.
create or replace function tally(most integer) returns integer
language plpgsql volatile
set search_path from current
set enable_seqscan = off
set jit = off
as $$
declare
    company uuid;
    tallied integer := 0;
begin
    for company in
        with recursive changed as (
            (select c.company_id from quota_changes c order by c.company_id limit 1)
            union all
            select n.company_id from changed x cross join lateral (
                select c.company_id from quota_changes c where c.company_id > x.company_id
                order by c.company_id limit 1
            ) n
        )
        select x.company_id from changed x limit most
    loop
        continue when not pg_try_advisory_xact_lock(quota_lock(company));
        with change as (
            delete from quota_changes c where c.company_id = company
            returning c.hour_starts_at, c.refunded, c.kept
        )
        update quota_usage u set refunded = least(u.refunded + d.refunded, u.reserved), kept = u.kept + d.kept
        from (
            select p.period, date_trunc(p.period, c.hour_starts_at, 'UTC') as starts_at,
                sum(c.refunded) as refunded, sum(c.kept) as kept
            from change c cross join unnest(array['hour', 'day', 'month']) as p(period)
            group by 1, 2
        ) d
        where u.company_id = company and u.period = d.period and u.starts_at = d.starts_at;
        tallied := tallied + 1;
    end loop;
    return tallied;
end
$$;

-- Forget periods that ended long ago, at most `most` of each kind: hours after 2 days, days after 62, months after 400.
-- A job's charge is forgotten when its month is.
-- Lives on quota_usage_period_starts_at_idx and job_reservations_reserved_at_idx.
create or replace function prune_quotas(most integer, at timestamptz default null) returns integer
language plpgsql volatile
set search_path from current
set enable_seqscan = off
set jit = off
as $$
declare
    moment constant timestamptz := coalesce(at, clock_timestamp());
    kind record;
    gone integer;
    forgotten integer := 0;
begin
    for kind in
        select * from (values ('hour', interval '2 days'), ('day', '62 days'), ('month', '400 days')) as k(period, kept)
    loop
        delete from quota_usage u where u.ctid = any (array(
            select x.ctid from quota_usage x
            where x.period = kind.period and x.starts_at < moment - kind.kept
            order by x.starts_at limit most
            for update skip locked));
        get diagnostics gone = row_count;
        forgotten := forgotten + gone;
    end loop;
    delete from job_reservations r where r.ctid = any (array(
        select x.ctid from job_reservations x where x.reserved_at < moment - interval '62 days'
        order by x.reserved_at limit most
        for update skip locked));
    get diagnostics gone = row_count;
    return forgotten + gone;
end
$$;

-- Compare the current periods of at most `most` companies with quotas, those after an id, with the rows that they are
-- made of, and correct those that differ. Answers the last company and how many periods differed; no company after
-- the last. What is compared is seen by one snapshot, and all of it is written by single transactions: so a difference
-- is there to stay, and what others do meanwhile does not change it.
-- Lives on companies_pkey, tasks_company_id_reserved_at_idx and job_reservations_pkey.
create or replace function audit_quotas(
    after uuid,
    most integer,
    at timestamptz default null,
    out last_company uuid,
    out corrected integer
)
language plpgsql volatile
set search_path from current
set enable_seqscan = off
set jit = off
as $$
declare
    moment constant timestamptz := coalesce(at, clock_timestamp());
    company uuid;
    difference integer;
begin
    corrected := 0;
    for company in
        select c.id from companies c
        where num_nonnulls(c.hourly_quota, c.daily_quota, c.monthly_quota) > 0 and (after is null or c.id > after)
        order by c.id limit most
    loop
        last_company := company;
        continue when not pg_try_advisory_xact_lock(quota_lock(company));
        insert into quota_usage as u (company_id, period, starts_at, reserved)
        select company, a.period, a.starts_at, r.charged - (a.reserved - a.refunded)
        from allowances(company, moment) a
        cross join lateral (
            select
                (select count(*) from tasks t
                 where t.company_id = company and t.reserved_at >= a.starts_at and t.reserved_at < a.ends_at)
                + (select count(*) from job_reservations j
                   where j.company_id = company and j.reserved_at >= a.starts_at and j.reserved_at < a.ends_at)
                + coalesce((select sum(c.kept) from quota_changes c
                   where c.company_id = company and c.hour_starts_at >= a.starts_at and c.hour_starts_at < a.ends_at), 0)
                + coalesce((select u.kept from quota_usage u
                   where u.company_id = company and u.period = a.period and u.starts_at = a.starts_at), 0) as charged
        ) r
        where r.charged <> a.reserved - a.refunded
        on conflict (company_id, period, starts_at) do update set reserved = u.reserved + excluded.reserved;
        get diagnostics difference = row_count;
        corrected := corrected + difference;
    end loop;
end
$$;
