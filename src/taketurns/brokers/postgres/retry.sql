-- Run a task again by hand, with a fresh count of retries: one that has ended, or at once one that waits for its
-- time. Answers the status that the task had, and the queue that got work; `processing` means that nothing was done,
-- for a retry is refused then alone.
-- The last move of a task that had ended leaves the task's row for the history.
-- Safe because the record's row is locked while it has ended, and one DELETE decides while it is scheduled.
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
begin
    select * into known from tasks t where t.company_id = owner and t.id = of_task for update;
    if not found then
        return query select null::text, null::text;
        return;
    end if;

    if known.finished_at is not null then
        was := coalesce(known.stopped_as, 'completed');
        insert into task_events (company_id, task_id, number, kind, at, started_at, worker_id, error)
        values (owner, of_task, known.event_number, was, known.finished_at, known.started_at, known.worker_id,
            known.error);
        update tasks t
        set finished_at = null, stopped_as = null, started_at = null, worker_id = null, result = null, error = null,
            retry_count = 0, event_number = known.event_number + 1
        where t.company_id = owner and t.id = of_task;
        place.event_number := known.event_number;
    else
        delete from scheduled_tasks s where s.company_id = owner and s.task_id = of_task returning * into place;
        if not found then
            return query select case when exists (
                select from processing_tasks p where p.company_id = owner and p.task_id = of_task
            ) then 'processing' else 'pending' end, null::text;
            return;
        end if;
        was := 'scheduled';
    end if;

    insert into task_events (company_id, task_id, number, kind, at)
    values (owner, of_task, place.event_number + 1, 'requeued', moment);
    insert into pending_tasks (queue, company_id, priority, run_after, task_id, type, retry_count, event_number)
    values (known.queue, owner, known.priority, moment, of_task, known.type, 0, place.event_number + 1);
    perform join_rotation(owner, array[known.queue]);
    return query select was, known.queue;
end
$$;
