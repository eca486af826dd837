-- End an unfinished task as cancelled, wherever it stands. Answers what was done: `cancelled`, the terminal status
-- that the task has had already, or nothing when the company has no such task.
-- Safe because one DELETE decides. A task may move on between two looks, so it is looked for again, in the order in
-- which tasks move. A running handler is told by its worker, which no longer finds its claim.
-- A task that has not started since it was submitted, or run again, is not charged: see reserve.sql.
-- Lives on the (company_id, task_id) index of each table.

create or replace function cancel(of_company text, of_task uuid, at timestamptz default null) returns text
language plpgsql volatile
set search_path from current
set enable_seqscan = off
as $$
#variable_conflict use_column
declare
    moment constant timestamptz := coalesce(at, clock_timestamp());
    owner constant uuid := company_id(of_company);
    known tasks;
    place processing_tasks;
begin
    for attempt in 1..10 loop
        if cancel_waiting(owner, of_task, moment) then
            return 'cancelled';
        end if;
        delete from processing_tasks p where p.company_id = owner and p.task_id = of_task returning * into place;
        if found then
            perform record_cancelled(owner, of_task, place.claimed_at, place.worker_id, place.retry_count,
                place.event_number + 1, moment);
            return 'cancelled';
        end if;
        select * into known from tasks t where t.company_id = owner and t.id = of_task;
        if not found then
            return null;
        end if;
        if known.finished_at is not null then
            return coalesce(known.stopped_as, 'completed');
        end if;
    end loop;

    -- It stands nowhere: its place was removed by hand.
    update tasks t
    set finished_at = moment, stopped_as = 'cancelled', event_number = 1 + coalesce(
        (select max(e.number) from task_events e where e.company_id = owner and e.task_id = of_task), 1)
    where t.company_id = owner and t.id = of_task and t.finished_at is null;
    perform tell_moves(array[owner], array[of_task]);
    return 'cancelled';
end
$$;

-- The same for a task that waits: whether it did. One that must wait, and does not, raises TQ003.
create or replace function cancel_waiting(
    owner uuid,
    of_task uuid,
    moment timestamptz,
    must_wait boolean default false
) returns boolean
language plpgsql volatile
set search_path from current
set enable_seqscan = off
as $$
declare
    place record;
begin
    delete from scheduled_tasks s where s.company_id = owner and s.task_id = of_task
        returning s.retry_count, s.event_number into place;
    if not found then
        delete from pending_tasks p where p.company_id = owner and p.task_id = of_task
            returning p.retry_count, p.event_number into place;
    end if;
    if not found then
        if must_wait then
            raise exception 'task % does not wait', of_task using errcode = 'TQ003';
        end if;
        return false;
    end if;
    perform record_cancelled(owner, of_task, null, null, place.retry_count, place.event_number + 1, moment);
    return true;
end
$$;

-- Write that a task was cancelled, once its place is gone.
create or replace function record_cancelled(
    owner uuid,
    of_task uuid,
    was_claimed_at timestamptz,
    by_worker uuid,
    retries integer,
    number integer,
    moment timestamptz
) returns void
language plpgsql volatile
set search_path from current
set enable_seqscan = off
as $$
declare
    charged_at timestamptz;
begin
    update tasks t
    set finished_at = moment, stopped_as = 'cancelled', started_at = was_claimed_at, worker_id = by_worker,
        retry_count = retries, event_number = number
    where t.company_id = owner and t.id = of_task
    returning t.reserved_at into charged_at;
    if charged_at is not null and was_claimed_at is null and not has_started(owner, of_task) then
        update tasks t set reserved_at = null where t.company_id = owner and t.id = of_task;
        insert into quota_changes (company_id, hour_starts_at, refunded)
        values (owner, date_trunc('hour', charged_at, 'UTC'), 1);
    end if;
    perform tell_moves(array[owner], array[of_task]);
end
$$;

-- Whether an attempt of a task that waits was made since it was submitted, or run again after an end. One that was
-- released does not count.
create or replace function has_started(of_company uuid, of_task uuid) returns boolean
language sql stable
set search_path from current
set enable_seqscan = off
as $$
    select exists (
        select from task_events e
        where e.company_id = of_company and e.task_id = of_task and e.kind in ('retried', 'deferred', 'rescued')
            and e.number > coalesce((
                select max(x.number) from task_events x
                where x.company_id = of_company and x.task_id = of_task
                    and x.kind in ('completed', 'failed', 'cancelled')), 0))
$$;
