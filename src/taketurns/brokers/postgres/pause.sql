-- Pause the tasks of a queue, of a type, or of a type in a queue: of one company, or, without one, of all. Empty names
-- are any. What runs goes on. It acts at the next claim; park.sql sets the tasks of a type aside, and the lines of a
-- queue rest. A pause that is set again is the new one. Answers whose it is, nothing when there is no such company.
-- Safe because claims read pauses under their own snapshots, and because a company cannot go while it is being paused.
-- Lives on pauses_pkey.

create or replace function pause(
    of_company text,
    in_queue text,
    of_type text,
    pause_until timestamptz default null,
    by_whom text default null,
    at timestamptz default null,
    out owner uuid,
    out set_at timestamptz
)
language plpgsql volatile
set search_path from current
as $$
#variable_conflict use_column
begin
    set_at := coalesce(at, clock_timestamp());
    owner := case when of_company is null then '00000000-0000-0000-0000-000000000000'::uuid
        else company_id(of_company) end;
    if of_company is not null and owner is not null then
        perform pg_advisory_xact_lock_shared(company_lock(owner));
        owner := company_id(of_company);
    end if;
    if owner is null then
        return;
    end if;
    insert into pauses as z (company_id, queue, type, until, set_by, set_at)
    values (owner, in_queue, of_type, pause_until, by_whom, pause.set_at)
    on conflict (company_id, queue, type) do update
        set until = excluded.until, set_by = excluded.set_by, set_at = excluded.set_at;
end
$$;

-- Lift a pause; answers whose it was, nothing when there was none. Its lines come back at once, its tasks in batches: see unpark.
create or replace function resume(of_company text, in_queue text, of_type text) returns uuid
language plpgsql volatile
set search_path from current
as $$
declare
    owner constant uuid := case when of_company is null then '00000000-0000-0000-0000-000000000000'
        else company_id(of_company) end;
begin
    delete from pauses z where z.company_id = owner and z.queue = in_queue and z.type = of_type;
    if not found then
        return null;
    end if;
    return owner;
end
$$;

-- Let the lines of a queue come back that rest, of a company or of all, and wake the workers of those that have work.
-- To be called when the change is committed: it waits under the cell's lock for a claim that did not see it.
create or replace function let_lines_return(of_company uuid, in_queue text) returns void
language sql volatile
set search_path from current
as $$
    select pg_advisory_xact_lock(cell_lock());
    update lines l set rests_until = clock_timestamp(), full_since = null, rests_below = null
    where in_queue <> '' and l.queue = in_queue and l.rests_place is not null
        and of_company in ('00000000-0000-0000-0000-000000000000', l.company_id);
    select pg_notify(current_schema() || '.tasks', q.queue)
    from (
        select distinct l.queue from lines l
        where in_queue in ('', l.queue) and of_company in ('00000000-0000-0000-0000-000000000000', l.company_id)
    ) q;
$$;

-- Forget the pauses whose time is over, and let their companies go on. Answers how many seconds later the next is over.
-- Safe as a change by hand is: a company comes back under its lock. Lives on pauses_until_idx and
-- companies_paused_until_idx.
create or replace function end_pauses(at timestamptz default null) returns double precision
language plpgsql volatile
set search_path from current
as $$
declare
    moment constant timestamptz := coalesce(at, clock_timestamp());
    over record;
begin
    for over in
        select c.id from companies c where c.paused_until <= moment order by c.id limit 100
    loop
        perform pg_advisory_xact_lock_shared(company_lock(over.id));
        update companies c set paused = false, paused_until = null,
            updated_at = greatest(clock_timestamp(), c.updated_at + interval '1 microsecond')
        where c.id = over.id and c.paused_until <= moment;
        if found then
            perform heal_rotation(over.id);
            perform let_schedules_go_on(over.id);
            perform wake(over.id);
        end if;
    end loop;
    for over in
        delete from pauses z where z.until <= moment returning z.company_id, z.queue
    loop
        perform let_lines_return(over.company_id, over.queue);
    end loop;
    return extract(epoch from least(
        (select z.until from pauses z where z.until > moment order by z.until limit 1),
        (select c.paused_until from companies c where c.paused_until > moment order by c.paused_until limit 1)) - moment);
end
$$;
