-- Make the task of a tick that has come, and move its schedule to the next one.
-- Safe because both are one transaction, and only one finds the schedule as it was read: waiting for the tick `due`,
-- and last changed when it was `seen`.
-- Lives on schedules_pkey.
--
-- Answers the queue that got work; null when the schedule was moved or changed meanwhile, or somebody is at it.
-- `made_tick` null: the tick is skipped, and no task made. Raises TQ001 when a quota is used up, TQ002 when others keep
-- the quotas: the tick stays due. While the company is paused its schedules are held as their ticks come: nobody looks
-- at them, and when it goes on, what came is made up for as what was missed is. See decisions/0020.

create or replace function tick(
    owner uuid,
    schedule uuid,
    due timestamptz,
    seen timestamptz,
    made_task uuid,
    made_tick timestamptz,
    next_due timestamptz,
    at timestamptz default null
) returns text
language plpgsql volatile
set search_path from current
set plan_cache_mode = force_generic_plan
set enable_seqscan = off
set jit = off
as $$
declare
    plan schedules;
    refusal text;
    is_held boolean;
begin
    -- Before the row, as whoever deletes the company does.
    perform pg_advisory_xact_lock_shared(company_lock(owner));
    -- Before the schedule, as `let_schedules_go_on` comes after it: whoever lets the company go on finds what is held.
    perform from companies c where c.id = owner and c.paused for share;
    is_held := found;
    select s.* into plan from schedules s
    where s.company_id = owner and s.id = schedule and s.next_tick_at = due and s.updated_at = seen and not s.paused
    for update skip locked;
    if not found then
        return null;
    end if;

    if is_held then
        update schedules s set held = true, error = 'the company is paused: its ticks wait until it goes on'
        where s.company_id = owner and s.id = schedule;
        return null;
    end if;
    if made_tick is not null then
        select e.outcome into refusal from enqueue(
            owner::text, array[made_task], array[plan.type], array[plan.payload::text], array[plan.queue],
            array[plan.priority], array[made_tick], array[null::double precision], array[plan.max_retries],
            array[plan.timeout_seconds], at => at, of_schedule => plan.id
        ) e where e.number = 0 and e.outcome <> 'reserved';
        if refusal = 'refused' then
            raise exception 'a quota of the company is used up' using errcode = 'TQ001';
        elsif refusal = 'full' then
            raise exception 'the company has as many tasks waiting as it may have' using errcode = 'TQ003';
        elsif refusal = 'busy' then
            raise exception 'another transaction keeps the quotas of the company' using errcode = 'TQ002';
        end if;
    end if;
    update schedules s
    set next_tick_at = next_due, last_tick_at = coalesce(made_tick, s.last_tick_at), error = null
    where s.company_id = owner and s.id = schedule;
    return plan.queue;
end
$$;

-- Let the schedules tick again that were held while their company was paused, of one or of all. To be called in the
-- transaction that lets the company go on, once its row is changed. Lives on schedules_held_idx.
create or replace function let_schedules_go_on(of_company uuid default null) returns void
language sql volatile
set search_path from current
set enable_seqscan = off
as $$
    update schedules s set held = false, error = null
    from companies c
    where s.held and (of_company is null or s.company_id = of_company) and c.id = s.company_id and not c.paused;
$$;
