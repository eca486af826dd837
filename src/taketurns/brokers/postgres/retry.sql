-- Run a task again by hand, with a fresh count of retries: one that has ended, or at once one that waits for its
-- time. Answers the status that the task had, and the queue that got work; `processing` means that nothing was done,
-- for a retry is refused then alone.
-- A task that had ended is charged again, last of all: see reserve.sql. If it was charged before and not refunded, that
-- stands. Raises TQ001 when a quota is used up, TQ002 when others keep the quotas, TQ003 when another task has its
-- unique key by now.
-- The last move of a task that had ended leaves the task's row for the history.
-- Safe because the record's row is locked if it has ended, and one DELETE decides while it is scheduled: as elsewhere,
-- a task's place is locked before its record. It may move on between two looks, so it is looked for again. The
-- company's lock comes before both: a deletion does not see work on its way in, and waits for it.
-- Lives on tasks_pkey and the (company_id, task_id) indexes.

create or replace function retry(of_company text, of_task uuid, at timestamptz default null) returns table (status text, queue text)
language plpgsql volatile
set search_path from current
set enable_seqscan = off
as $$
#variable_conflict use_column
declare
    moment constant timestamptz := coalesce(at, clock_timestamp());
    owner constant uuid := company_id(of_company);
    known tasks;
    place scheduled_tasks;
    was text;
    has_quotas boolean;
begin
    if owner is not null then
        perform pg_advisory_xact_lock_shared(company_lock(owner));
    end if;
    select num_nonnulls(c.hourly_quota, c.daily_quota, c.monthly_quota) > 0 into has_quotas
    from companies c where c.id = owner;
    if not found then
        return query select null::text, null::text;
        return;
    end if;

    for attempt in 1..10 loop
        select * into known from tasks t
        where t.company_id = owner and t.id = of_task and t.finished_at is not null for update;
        if found then
            was := coalesce(known.stopped_as, 'completed');
            if known.unique_key is not null then
                perform take_unique_key_again(owner, known.unique_key, of_task, moment);
            end if;
            insert into task_events (company_id, task_id, number, kind, at, started_at, worker_id, error)
            values (owner, of_task, known.event_number, was, known.finished_at, known.started_at, known.worker_id,
                known.error);
            update tasks t
            set finished_at = null, stopped_as = null, started_at = null, worker_id = null, result = null,
                error = null, error_fingerprint = null, retry_count = 0, event_number = known.event_number + 1,
                reserved_at = case when has_quotas then moment end
            where t.company_id = owner and t.id = of_task;
            if known.reserved_at is not null then
                insert into quota_changes (company_id, hour_starts_at, kept)
                values (owner, date_trunc('hour', known.reserved_at, 'UTC'), 1);
            end if;
            select owner, of_task, known.queue, known.priority, known.type, known.event_number
            into place.company_id, place.task_id, place.queue, place.priority, place.type, place.event_number;
            exit;
        end if;

        delete from scheduled_tasks s where s.company_id = owner and s.task_id = of_task returning * into place;
        if found then
            was := 'scheduled';
            exit;
        end if;

        select case
                when exists (select from processing_tasks p where p.company_id = owner and p.task_id = of_task)
                    then 'processing'
                when exists (select from pending_tasks p where p.company_id = owner and p.task_id = of_task)
                    then 'pending'
            end
        into was;
        if was is not null or not exists (select from tasks t where t.company_id = owner and t.id = of_task) then
            return query select was, null::text;
            return;
        end if;
    end loop;
    if was is null then
        -- It stands nowhere: its place was removed by hand. It can be cancelled.
        return query select 'pending', null::text;
        return;
    end if;

    insert into task_events (company_id, task_id, number, kind, at)
    values (owner, of_task, place.event_number + 1, 'requeued', moment);
    insert into pending_tasks (queue, company_id, priority, run_after, task_id, type, retry_count, event_number)
    values (place.queue, owner, place.priority, moment, of_task, place.type, 0, place.event_number + 1);
    perform join_rotation(owner, array[place.queue]);
    perform tell_moves(array[owner], array[of_task]);
    if has_quotas and was <> 'scheduled' then
        perform reserve_or_raise(owner, 1, moment);
    end if;
    return query select was, place.queue;
end
$$;
