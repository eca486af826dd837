-- Make the task of a tick that has come, and move its schedule to the next one.
-- Safe because both are one transaction, and only one finds the schedule as it was read: waiting for the tick `due`,
-- and last changed when it was `seen`.
-- Lives on schedules_pkey.
--
-- Answers the queue that got work; null when the schedule was moved or changed meanwhile, or somebody is at it.
-- `made_tick` null: the tick is skipped, and no task made. Raises TQ001 when a quota is used up, TQ002 when others keep
-- the quotas: the tick stays due.

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
begin
    -- Before the row, as whoever deletes the company does.
    perform pg_advisory_xact_lock_shared(company_lock(owner));
    select s.* into plan from schedules s
    where s.company_id = owner and s.id = schedule and s.next_tick_at = due and s.updated_at = seen and not s.paused
    for update skip locked;
    if not found then
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
