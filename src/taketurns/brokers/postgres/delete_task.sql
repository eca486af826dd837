-- Forget a task that has ended, before its retention has. Answers the status that it had: nothing was done unless that
-- was an end; null when the company has no such task.
-- Safe because its record is locked while it has ended, as `retry` and `prune` do. What it was charged stands.
-- Lives on tasks_pkey, task_events_pkey, task_tags_pkey and unique_keys_pkey.

create or replace function delete_task(of_company text, of_task uuid) returns text
language plpgsql volatile
set search_path from current
set enable_seqscan = off
as $$
declare
    owner constant uuid := company_id(of_company);
    known tasks;
begin
    delete from tasks t where t.company_id = owner and t.id = of_task and t.finished_at is not null returning * into known;
    if not found then
        return task_status(owner, of_task);
    end if;
    delete from task_events e where e.company_id = owner and e.task_id = of_task;
    delete from task_tags g where g.company_id = owner and g.tag = any (known.tags) and g.task_id = of_task;
    delete from unique_keys u where u.company_id = owner and u.key = known.unique_key and u.task_id = of_task;
    if known.reserved_at is not null then
        insert into quota_changes (company_id, hour_starts_at, kept)
        values (owner, date_trunc('hour', known.reserved_at, 'UTC'), 1);
    end if;
    return coalesce(known.stopped_as, 'completed');
end
$$;
