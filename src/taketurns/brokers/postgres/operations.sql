-- One change of many tasks, carried on in steps by whoever keeps the house.
-- Each task is changed by the verb that a single change is, in a transaction of its own: so it locks what that locks, in
-- that order, and no batch of places is kept from claims. The row of `operation_tasks` is locked first, and says in the
-- same transaction that it was done: a step that dies is gone on with, and nothing is changed twice.
-- Lives on operations_pkey, operations_next_step_at_idx and operation_tasks_pkey.

-- Take in an operation on these tasks, or (null) on what its filter will name. Answers false when an earlier request
-- with its key made one. Raises no_data_found when there is no such company, and TQ004 when it has so many that go on.
create or replace function create_operation(
    of_company text,
    operation_id uuid,
    kind text,
    filter text,
    statuses text[],
    run_after timestamptz,
    rate double precision,
    task_ids uuid[],
    idempotency_key text,
    fingerprint bytea,
    most integer,
    at timestamptz default null
) returns boolean
language plpgsql volatile
set search_path from current
set enable_seqscan = off
as $$
#variable_conflict use_column
declare
    moment constant timestamptz := coalesce(at, clock_timestamp());
    owner constant uuid := company_id(of_company);
begin
    if owner is not null then
        perform pg_advisory_xact_lock_shared(company_lock(owner));
        perform pg_advisory_xact_lock(hashtextextended('operations' || current_schema() || owner::text, 0));
    end if;
    perform from companies c where c.id = owner;
    if not found then
        raise exception 'no company %', quote_literal(of_company) using errcode = 'no_data_found';
    end if;
    insert into operations (company_id, id, kind, filter, statuses, run_after, rate, idempotency_key, fingerprint,
        is_matched, matched, next_step_at, created_at)
    values (owner, operation_id, create_operation.kind, create_operation.filter::jsonb, create_operation.statuses,
        create_operation.run_after, create_operation.rate, create_operation.idempotency_key,
        create_operation.fingerprint, task_ids is not null, coalesce(cardinality(task_ids), 0), moment, moment)
    on conflict do nothing;
    if not found then
        return false;
    end if;
    if (select count(*) from operations o where o.company_id = owner and o.finished_at is null) > most then
        raise exception 'the company has % operations that go on', most using errcode = 'TQ004';
    end if;
    insert into operation_tasks (company_id, operation_id, task_id)
    select owner, create_operation.operation_id, t.task_id from unnest(task_ids) as t(task_id);
    return true;
end
$$;

-- Take an operation whose step is due, for as long as one step may take: of the company that had none for the longest
-- time, the one that is due for the longest time. Each step moves its operation behind the others.
create or replace function take_operation(lease interval, at timestamptz default null) returns table (
    company_id uuid,
    id uuid,
    kind text,
    filter text,
    is_matched boolean,
    looked_to uuid,
    rate double precision,
    is_aborted boolean,
    created_at timestamptz,
    taken_at timestamptz
)
language sql volatile
set search_path from current
set enable_seqscan = off
as $$
    update operations o set next_step_at = coalesce(at, clock_timestamp()) + lease
    where o.ctid = any (array(
        select x.ctid
        from operations x
        join (
            select y.company_id, max(y.next_step_at) as latest from operations y
            where y.finished_at is null and y.next_step_at <= coalesce(at, clock_timestamp())
            group by y.company_id
        ) company on company.company_id = x.company_id
        where x.finished_at is null and x.next_step_at <= coalesce(at, clock_timestamp())
        order by company.latest, x.next_step_at limit 1
        for update of x skip locked))
    returning o.company_id, o.id, o.kind, o.filter::text, o.is_matched, o.looked_to, o.rate, o.aborted_at is not null,
        o.created_at, o.next_step_at - lease
$$;

-- How long until a step of an operation is due, below zero while one is; null when all are over.
create or replace function seconds_to_next_step(at timestamptz default null) returns double precision
language sql volatile
set search_path from current
set enable_seqscan = off
as $$
    select extract(epoch from min(o.next_step_at) - coalesce(at, clock_timestamp())) from operations o
    where o.finished_at is null
$$;

-- Take note of what was found since `looked_from`; of nothing if somebody else has looked on from there.
create or replace function note_matches(
    owner uuid,
    operation uuid,
    looked_from uuid,
    now_looked_to uuid,
    task_ids uuid[],
    due_at timestamptz
) returns void
language plpgsql volatile
set search_path from current
set enable_seqscan = off
as $$
begin
    update operations o
    set looked_to = now_looked_to, is_matched = now_looked_to is null, matched = o.matched + cardinality(task_ids),
        next_step_at = due_at
    where o.company_id = owner and o.id = operation and not o.is_matched and o.looked_to is not distinct from looked_from
        and o.aborted_at is null;
    if found then
        insert into operation_tasks (company_id, operation_id, task_id)
        select owner, operation, t.task_id from unnest(task_ids) as t(task_id);
    end if;
end
$$;

-- The next tasks that an operation is to change.
create or replace function tasks_to_change(owner uuid, operation uuid, most integer) returns table (task_id uuid)
language sql stable
set search_path from current
set enable_seqscan = off
as $$
    select t.task_id from operation_tasks t
    where t.company_id = owner and t.operation_id = operation and t.outcome is null
    order by t.task_id limit most
$$;

-- Change one task, unless somebody else does or it was aborted. Answers the queue that got work.
-- Raises TQ002 when others keep the quotas: the task is left for later.
create or replace function change_task(
    owner uuid,
    operation uuid,
    of_task uuid,
    at timestamptz default null
) returns text
language plpgsql volatile
set search_path from current
set enable_seqscan = off
as $$
declare
    told operations;
    was text;
    how text;
    gets_work text;
begin
    perform from operation_tasks t
    where t.company_id = owner and t.operation_id = operation and t.task_id = of_task and t.outcome is null
    for update skip locked;
    if not found then
        return null;
    end if;
    select * into told from operations o where o.company_id = owner and o.id = operation;
    if told.aborted_at is not null then
        return null;
    end if;

    was := coalesce(task_status(owner, of_task), 'notFound');
    if was = 'notFound' or was <> all (told.statuses) then
        how := was;
    elsif told.kind = 'cancel' then
        if was not in ('completed', 'failed', 'cancelled') then
            was := cancel(owner::text, of_task, at);
            was := case when was = 'cancelled' then 'pending' else coalesce(was, 'notFound') end;
        end if;
        how := case when was in ('scheduled', 'pending', 'processing') then 'done' else was end;
    elsif told.kind = 'retry' then
        begin
            select coalesce(r.status, 'notFound'), r.queue into was, gets_work from retry(owner::text, of_task, at) r;
            how := case when gets_work is not null then 'done' else was end;
        exception
            when sqlstate 'TQ001' then
                how := 'quotaExceeded';
            when sqlstate 'TQ003' then
                how := 'uniqueKeyTaken';
        end;
    elsif told.kind = 'reschedule' then
        was := coalesce(reschedule(owner::text, of_task, told.run_after, at), 'notFound');
        how := case when was in ('scheduled', 'pending') then 'done' else was end;
    else
        was := coalesce(delete_task(owner::text, of_task), 'notFound');
        how := case when was in ('completed', 'failed', 'cancelled') then 'done' else was end;
    end if;
    update operation_tasks t set outcome = how
    where t.company_id = owner and t.operation_id = operation and t.task_id = of_task;
    return gets_work;
end
$$;

-- Count what was done since the last step, and forget it; answers whether that was the end of the operation.
-- What an aborted one leaves is forgotten, `most` tasks at a time.
create or replace function end_step(
    owner uuid,
    operation uuid,
    due_at timestamptz,
    most integer,
    at timestamptz default null
) returns boolean
language plpgsql volatile
set search_path from current
set enable_seqscan = off
as $$
declare
    told operations;
    changed bigint;
    passed jsonb;
begin
    select * into told from operations o where o.company_id = owner and o.id = operation for update;
    with gone as (
        delete from operation_tasks t
        where t.ctid = any (array(
            select x.ctid from operation_tasks x
            where x.company_id = owner and x.operation_id = operation
                and (x.outcome is not null or told.aborted_at is not null)
            order by x.task_id limit most
            for update skip locked))
        returning t.outcome
    ), counted as (
        select g.outcome, count(*) as tasks from gone g where g.outcome is not null group by g.outcome
    )
    select coalesce(sum(c.tasks) filter (where c.outcome = 'done'), 0),
        coalesce(jsonb_object_agg(c.outcome, c.tasks + coalesce((told.skipped ->> c.outcome)::bigint, 0))
            filter (where c.outcome <> 'done'), '{}')
    into changed, passed
    from counted c;
    update operations o
    set done = o.done + changed, skipped = o.skipped || passed, next_step_at = due_at,
        finished_at = case
            when (o.is_matched or o.aborted_at is not null)
                and not exists (
                    select from operation_tasks t where t.company_id = owner and t.operation_id = operation)
                then coalesce(at, clock_timestamp()) end
    where o.company_id = owner and o.id = operation and o.finished_at is null
    returning o.* into told;
    return told.finished_at is not null;
end
$$;

-- End an operation early; what was changed stays so. False when it is over or ended already, or there is none.
create or replace function abort_operation(of_company text, operation uuid, at timestamptz default null) returns boolean
language plpgsql volatile
set search_path from current
set enable_seqscan = off
as $$
begin
    update operations o
    set aborted_at = coalesce(at, clock_timestamp()), next_step_at = least(o.next_step_at, coalesce(at, clock_timestamp()))
    where o.company_id = company_id(of_company) and o.id = operation and o.finished_at is null and o.aborted_at is null;
    return found;
end
$$;
