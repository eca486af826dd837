-- Quotas of jobs, which wait elsewhere: reserved here before a job is handed over, and given back by the job's id.
-- A row of `job_reservations` is one job's charge. It stands until it is given back, or its month is long over; so
-- nothing is given back twice. It is confirmed once the job is known to have arrived.
-- Lives on job_reservations_pkey.

-- Answers when the jobs were reserved (null: the company has no quotas) and how the quotas stand then. A job that has a
-- reservation which is not confirmed keeps it; a confirmed one is run again by hand: its charge stands, and it is
-- charged once more. Of several who do that at once, each tells the charge that it saw (`instead_of`), and the first one
-- is charged for it.
create or replace function reserve_jobs(
    of_company text,
    job_ids uuid[],
    at timestamptz default null,
    instead_of timestamptz default null,
    out company_id uuid,
    out reserved_at timestamptz,
    out told text
)
language plpgsql volatile
set search_path from current
set enable_seqscan = off
as $$
#variable_conflict use_column
declare
    moment constant timestamptz := coalesce(at, clock_timestamp());
    owner constant uuid := company_id(of_company);
    wanted integer;
    has_quotas boolean;
begin
    if owner is not null then
        perform pg_advisory_xact_lock_shared(company_lock(owner));
    end if;
    select num_nonnulls(c.hourly_quota, c.daily_quota, c.monthly_quota) > 0 into has_quotas
    from companies c where c.id = owner;
    if not found then
        raise exception 'no company %', quote_literal(of_company) using errcode = 'no_data_found';
    end if;
    company_id := owner;
    if not has_quotas then
        return;
    end if;

    perform from job_reservations r where r.company_id = owner and r.job_id = any (job_ids) order by r.job_id for update;
    insert into quota_changes (company_id, hour_starts_at, kept)
    select owner, date_trunc('hour', r.reserved_at, 'UTC'), count(*) from job_reservations r
    where r.company_id = owner and r.job_id = any (job_ids)
        and r.confirmed and r.reserved_at = coalesce(instead_of, r.reserved_at)
    group by 2;
    with reserved as (
        insert into job_reservations as r (company_id, job_id, reserved_at)
        select owner, j.job_id, moment from (select distinct unnest(job_ids) as job_id) j order by j.job_id
        on conflict (company_id, job_id) do update set reserved_at = excluded.reserved_at, confirmed = false
            where r.confirmed and r.reserved_at = coalesce(instead_of, r.reserved_at)
        returning 1
    )
    select count(*) into wanted from reserved;
    if wanted > 0 then
        told := reserve_or_raise(owner, wanted, moment);
    else
        told := (select l.told from look_at_quotas(owner, 0, moment) l);
    end if;
    reserved_at := (select min(r.reserved_at) from job_reservations r
        where r.company_id = owner and r.job_id = any (job_ids));
end
$$;

-- Give back what was reserved for these jobs then; answers for how many. Named again, a charge changes nothing.
create or replace function refund_jobs(companies uuid[], job_ids uuid[], moments timestamptz[]) returns integer
language sql volatile
set search_path from current
set enable_seqscan = off
as $$
    with charged as materialized (
        select r.company_id, r.job_id from job_reservations r
        join unnest(companies, job_ids, moments) as j(company_id, job_id, reserved_at)
            on j.company_id = r.company_id and j.job_id = r.job_id and j.reserved_at = r.reserved_at
        order by r.company_id, r.job_id
        for update of r
    ), given_back as (
        delete from job_reservations r using charged c where r.company_id = c.company_id and r.job_id = c.job_id
        returning r.company_id, r.reserved_at
    ), changed as (
        insert into quota_changes (company_id, hour_starts_at, refunded)
        select g.company_id, date_trunc('hour', g.reserved_at, 'UTC'), count(*) from given_back g group by 1, 2
    )
    select count(*)::integer from given_back
$$;

-- Take note that these jobs arrived where they wait.
create or replace function confirm_jobs(companies uuid[], job_ids uuid[], moments timestamptz[]) returns void
language sql volatile
set search_path from current
set enable_seqscan = off
as $$
    with arrived as materialized (
        select r.company_id, r.job_id from job_reservations r
        join unnest(companies, job_ids, moments) as j(company_id, job_id, reserved_at)
            on j.company_id = r.company_id and j.job_id = r.job_id and j.reserved_at = r.reserved_at
        where not r.confirmed
        order by r.company_id, r.job_id
        for update of r
    )
    update job_reservations r set confirmed = true
    from arrived a where r.company_id = a.company_id and r.job_id = a.job_id
$$;
