-- Put a task that waits off to a time, or bring it forward. Answers the status that it had: nothing was done unless that
-- was `scheduled` or `pending`; null when the company has no such task.
-- Safe because one DELETE decides, as for `cancel`. A time that has come is promoted like any other.
-- Lives on the (company_id, task_id) index of each table.

create or replace function reschedule(
    of_company text,
    of_task uuid,
    to_moment timestamptz,
    at timestamptz default null
) returns text
language plpgsql volatile
set search_path from current
set enable_seqscan = off
as $$
#variable_conflict use_column
declare
    moment constant timestamptz := coalesce(at, clock_timestamp());
    owner constant uuid := company_id(of_company);
    place scheduled_tasks;
    was text;
begin
    delete from scheduled_tasks s where s.company_id = owner and s.task_id = of_task returning * into place;
    if found then
        was := 'scheduled';
    else
        -- One that is set aside goes back to the line that it came from: see park.sql.
        delete from pending_tasks p where p.company_id = owner and p.task_id = of_task
            returning p.company_id, p.task_id,
                case when starts_with(p.queue, '!') then split_part(p.queue, '!', 3) else p.queue end,
                p.priority, p.type, p.retry_count, p.rescue_count, p.event_number
            into place.company_id, place.task_id, place.queue, place.priority, place.type, place.retry_count,
                place.rescue_count, place.event_number;
        if not found then
            return task_status(owner, of_task);
        end if;
        was := 'pending';
    end if;
    insert into scheduled_tasks (company_id, task_id, queue, run_after, priority, type, retry_count, rescue_count,
        event_number)
    values (owner, of_task, place.queue, to_moment, place.priority, place.type, place.retry_count, place.rescue_count,
        place.event_number + 1);
    insert into task_events (company_id, task_id, number, kind, at, run_after)
    values (owner, of_task, place.event_number + 1, 'rescheduled', moment, to_moment);
    perform tell_moves(array[owner], array[of_task]);
    return was;
end
$$;

-- Where a task stands; null when the company has no such task. In one statement, so that one that moves is seen.
create or replace function task_status(owner uuid, of_task uuid) returns text
language sql stable
set search_path from current
set enable_seqscan = off
as $$
    select case
        when exists (select from processing_tasks p where p.company_id = owner and p.task_id = of_task) then 'processing'
        when exists (select from pending_tasks p where p.company_id = owner and p.task_id = of_task) then 'pending'
        when exists (select from scheduled_tasks s where s.company_id = owner and s.task_id = of_task) then 'scheduled'
        when t.finished_at is not null then coalesce(t.stopped_as, 'completed')
        else 'pending' end
    from tasks t where t.company_id = owner and t.id = of_task
$$;
