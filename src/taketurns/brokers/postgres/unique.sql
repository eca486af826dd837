-- Unique keys: of a company's tasks with one key, only one stands at a time. It has the key until it has ended; or, if a
-- time was said, until then or until it has failed, was cancelled or is gone, whichever comes first.
-- Nothing gives a key back: whoever wants it looks at the record of the task that had it last. So every end frees it.
-- Safe because the key's row is locked before that look, which begins later than the last holder's commit. Rows are
-- locked in the order of keys, and before the place of any task; of a task that has ended, after its record.
-- Lives on unique_keys_pkey and tasks_pkey.

-- Whether a task still has the key that it had until then (null: until it ends).
create or replace function has_unique_key(
    owner uuid,
    by_task uuid,
    until timestamptz,
    moment timestamptz
) returns boolean
language sql stable
set search_path from current
set enable_seqscan = off
as $$
    select exists (
        select from tasks t
        where t.company_id = owner and t.id = by_task and t.stopped_as is null
            and case when until is null then t.finished_at is null else moment < until end)
$$;

-- Take the unique keys of new tasks that are free. Answers, by the number of the task, what stands in the way of others
-- and what is to be done then: `return` that task, `replace` it, for it waits, or `reject` the new one. `earlier` are
-- tasks that are not made.
create or replace function take_unique_keys(
    owner uuid,
    uniques text[],
    unique_seconds double precision[],
    on_conflicts text[],
    task_ids uuid[],
    earlier jsonb,
    moment timestamptz
) returns jsonb
language plpgsql volatile
set search_path from current
set plan_cache_mode = force_generic_plan
set enable_seqscan = off
set enable_hashjoin = off
set enable_mergejoin = off
set jit = off
as $$
declare
    held jsonb;
begin
    insert into unique_keys (company_id, key, task_id, expires_at)
    select distinct on (n.key) owner, n.key, n.task_id, moment + make_interval(secs => n.seconds)
    from unnest(uniques, task_ids, unique_seconds) with ordinality as n(key, task_id, seconds, number)
    where n.key is not null and not earlier ? n.number::text
    order by n.key, n.number
    on conflict (company_id, key) do nothing;

    perform from unique_keys u where u.company_id = owner and u.key = any (uniques) order by u.key for update;

    select coalesce(jsonb_object_agg(n.number, jsonb_build_object('task', u.task_id, 'then',
        case
            when n.on_conflict = 'return' and u.task_id <> all (task_ids) then 'return'
            when n.on_conflict = 'replace' and (
                exists (select from scheduled_tasks s where s.company_id = owner and s.task_id = u.task_id)
                or exists (select from pending_tasks p where p.company_id = owner and p.task_id = u.task_id))
                then 'replace'
            else 'reject'
        end)), '{}')
    into held
    from unnest(uniques, task_ids, on_conflicts) with ordinality as n(key, task_id, on_conflict, number)
    join unique_keys u on u.company_id = owner and u.key = n.key
    where not earlier ? n.number::text and u.task_id <> n.task_id
        and (u.task_id = any (task_ids) or has_unique_key(owner, u.task_id, u.expires_at, moment));

    update unique_keys u set task_id = n.task_id, expires_at = moment + make_interval(secs => n.seconds)
    from unnest(uniques, task_ids, unique_seconds) with ordinality as n(key, task_id, seconds, number)
    where u.company_id = owner and u.key = n.key and u.task_id <> n.task_id and not earlier ? n.number::text
        and not held ? n.number::text;
    return held;
end
$$;

-- Take the unique key of a task that is run again, until it ends. Raises TQ003, with the task that has it.
create or replace function take_unique_key_again(owner uuid, wanted text, for_task uuid, moment timestamptz) returns void
language plpgsql volatile
set search_path from current
set enable_seqscan = off
as $$
declare
    known unique_keys;
begin
    insert into unique_keys (company_id, key, task_id) values (owner, wanted, for_task)
    on conflict (company_id, key) do nothing;
    select * into known from unique_keys u where u.company_id = owner and u.key = wanted for update;
    if known.task_id <> for_task and has_unique_key(owner, known.task_id, known.expires_at, moment) then
        raise exception 'another task has the unique key' using errcode = 'TQ003', detail = known.task_id;
    end if;
    update unique_keys u set task_id = for_task, expires_at = null where u.company_id = owner and u.key = wanted;
end
$$;

-- Give back the keys that a request took, of which nothing was made.
create or replace function give_keys_back(owner uuid, keys text[], uniques text[], task_ids uuid[]) returns void
language sql volatile
set search_path from current
set enable_seqscan = off
as $$
    delete from idempotency_keys k
    where k.company_id = owner and k.key = any (keys) and k.task_id = any (task_ids);
    delete from unique_keys u
    where u.company_id = owner and u.key = any (uniques) and u.task_id = any (task_ids)
$$;
