-- Create tasks of one company, all or none, each once for its idempotency key.
-- Safe because the key's row decides: a second request with the same key waits for the first to commit, then finds
-- its task. A conflict is found before anything else is written, and the keys just taken are given back.
-- A company with quotas is charged for what is new, last of all; see reserve.sql. It is looked at before that, so that
-- a request which cannot pass writes nothing and waits for nobody.
-- Of the unique keys see unique.sql: what another task stands in the way of is `taken`, and nothing is stored, or
-- `held`: that task is the answer. Idempotency keys come first: a replayed request asks for no unique key, and a key
-- whose task is held stands for that task.
-- Lives on idempotency_keys_pkey, unique_keys_pkey and companies_pkey or companies_slug_key.
--
-- `of_company` is an id or a slug. One array element a task; null where a task has no such value, and an array of what
-- no task has may be null as a whole. Raises no_data_found when there is no such company.
-- With quotas there is a row number 0: `reserved`, or, alone in its meaning, `refused` or `busy`: nothing was stored.
-- Of a company with a limit on what it may have queued, one submits at a time, and row number 0 may say `full`. What is
-- replaced gives up its place: should it be in a worker's hand by then, nothing is stored at all.
-- With a worker and a token the tasks are done where they are asked for: they are `processing` at once, in a line that
-- nobody serves (`!inline`), and are nobody's turn.

create or replace function enqueue(
    of_company text,
    task_ids uuid[],
    types text[],
    payloads text[],
    queues text[],
    priorities smallint[],
    run_afters timestamptz[],
    delays double precision[],
    max_retries integer[],
    timeouts double precision[],
    keys text[] default null,
    fingerprints bytea[] default null,
    key_lifetime interval default '24 hours',
    requests text[] default null,
    at timestamptz default null,
    traces text[] default null,
    tag_lists text[] default null,
    uniques text[] default null,
    unique_seconds double precision[] default null,
    on_conflicts text[] default null,
    of_schedule uuid default null,
    for_worker uuid default null,
    with_token uuid default null
) returns table (
    number integer,
    outcome text,
    company_id uuid,
    task_id uuid,
    status text,
    run_after timestamptz,
    created_at timestamptz,
    told text
)
language plpgsql volatile
set search_path from current
set plan_cache_mode = force_generic_plan
set enable_seqscan = off
set jit = off
as $$
#variable_conflict use_column
declare
    moment constant timestamptz := coalesce(at, clock_timestamp());
    owner constant uuid := company_id(of_company);
    earlier jsonb := '{}';
    held jsonb;
    taken jsonb := '{}';
    replaced uuid[] := '{}';
    is_charged boolean;
    is_reserved boolean := false;
    wanted integer := cardinality(task_ids);
    most_queued integer;
    reservation record;
    due timestamptz;
begin
    if owner is not null then
        perform pg_advisory_xact_lock_shared(company_lock(current_schema()::text, owner));
    end if;
    select num_nonnulls(c.hourly_quota, c.daily_quota, c.monthly_quota) > 0, c.max_queued into is_charged, most_queued
    from companies c where c.id = owner;
    if not found then
        raise exception 'no company %', quote_literal(of_company) using errcode = 'no_data_found';
    end if;

    if most_queued is not null and with_token is null then
        perform hold_queue(owner);
    end if;
    if keys is not null then
        insert into idempotency_keys as k (company_id, key, fingerprint, task_id, expires_at)
        select distinct on (n.key) owner, n.key, n.fingerprint, n.task_id, moment + key_lifetime
        from unnest(keys, fingerprints, task_ids) with ordinality as n(key, fingerprint, task_id, number)
        where n.key is not null
        order by n.key, n.number
        on conflict (company_id, key) do update
            set fingerprint = excluded.fingerprint, task_id = excluded.task_id, expires_at = excluded.expires_at
            where k.expires_at <= moment;

        -- What each key stands for: this request's own task, or the one that an earlier request made.
        select coalesce(jsonb_object_agg(n.number, jsonb_build_object(
                   'task', k.task_id, 'conflict', k.fingerprint <> n.fingerprint)), '{}')
        into earlier
        from unnest(keys, fingerprints, task_ids) with ordinality as n(key, fingerprint, task_id, number)
        join idempotency_keys k on k.company_id = owner and k.key = n.key
        where k.task_id <> n.task_id;

        if jsonb_path_exists(earlier, '$.*.conflict ? (@ == true)') then
            perform give_keys_back(owner, keys, uniques, task_ids);
            return query
            select e.key::integer, 'conflict', owner, (e.value ->> 'task')::uuid, null::text, null::timestamptz,
                null::timestamptz, null::text
            from jsonb_each(earlier) e where (e.value ->> 'conflict')::boolean
            order by e.key::integer;
            return;
        end if;
    end if;

    if uniques is not null then
        held := take_unique_keys(owner, uniques, unique_seconds, on_conflicts, task_ids, earlier, moment);
        select coalesce(jsonb_object_agg(h.key, h.value) filter (where h.value ->> 'then' = 'reject'), '{}'),
            coalesce(array_agg((h.value ->> 'task')::uuid) filter (where h.value ->> 'then' = 'replace'), '{}'),
            earlier || coalesce(jsonb_object_agg(h.key, h.value) filter (where h.value ->> 'then' = 'return'), '{}')
        into taken, replaced, earlier
        from jsonb_each(held) h;
        update idempotency_keys k set task_id = (e.value ->> 'task')::uuid
        from jsonb_each(earlier) e
        where e.value ->> 'then' = 'return' and k.company_id = owner and k.key = keys[e.key::integer]
            and k.task_id = task_ids[e.key::integer];
    end if;

    if is_charged or most_queued is not null then
        wanted := wanted - (select count(*) from jsonb_object_keys(earlier));
        is_charged := is_charged and wanted > 0;
    end if;
    if most_queued is not null and wanted > 0 and taken = '{}' and with_token is null
        and not has_room(owner, wanted - cardinality(replaced), most_queued)
    then
        perform give_keys_back(owner, keys, uniques, task_ids);
        return query select 0, 'full', owner, null::uuid, null::text, null::timestamptz, null::timestamptz,
            jsonb_build_object('wanted', wanted - cardinality(replaced), 'max_queued', most_queued)::text;
        return;
    end if;
    if is_charged and taken = '{}' then
        select 'refused' as outcome, l.* into reservation from look_at_quotas(owner, wanted, moment) l;
        if not reservation.has_room then
            perform give_keys_back(owner, keys, uniques, task_ids);
            return query select 0, 'refused', owner, null::uuid, null::text, null::timestamptz, null::timestamptz,
                reservation.told;
            return;
        end if;
    end if;

    -- What is replaced is cancelled after the last wait for others: while its place is locked, claims wait for it. It may
    -- be in a worker's hand by then.
    if replaced <> '{}' and taken = '{}' then
        if is_charged then
            select * into reservation from reserve(owner, wanted, moment);
            if reservation.outcome <> 'reserved' then
                perform give_keys_back(owner, keys, uniques, task_ids);
                return query select 0, reservation.outcome, owner, null::uuid, null::text, null::timestamptz,
                    null::timestamptz, reservation.told;
                return;
            end if;
            is_reserved := true;
        end if;
        begin
            perform cancel_waiting(owner, r.task_id, moment, true)
            from unnest(replaced) as r(task_id) order by r.task_id;
            update unique_keys u set task_id = task_ids[h.key::integer],
                expires_at = moment + make_interval(secs => unique_seconds[h.key::integer])
            from jsonb_each(held) h
            where h.value ->> 'then' = 'replace' and u.company_id = owner and u.key = uniques[h.key::integer];
        exception when sqlstate 'TQ003' then
            select jsonb_object_agg(h.key, h.value) into taken from jsonb_each(held) h
            where h.value ->> 'then' = 'replace';
        end;
    end if;
    if taken <> '{}' then
        perform give_keys_back(owner, keys, uniques, task_ids);
        if is_reserved then
            insert into quota_changes (company_id, hour_starts_at, refunded)
            values (owner, date_trunc('hour', moment, 'UTC'), wanted);
        end if;
        return query
        select t.key::integer, 'taken', owner, (t.value ->> 'task')::uuid, null::text, null::timestamptz,
            null::timestamptz, null::text
        from jsonb_each(taken) t order by t.key::integer;
        return;
    end if;

    if cardinality(task_ids) = 1 and earlier = '{}' and tag_lists is null and with_token is null then
        -- One plain task, as most requests have it: the statement below takes longer to start than to run.
        due := coalesce(run_afters[1], moment + make_interval(secs => delays[1]), moment);
        insert into tasks (company_id, id, type, queue, priority, run_after, max_retries, timeout_seconds, payload,
            request_id, traceparent, schedule_id, unique_key, created_at, reserved_at)
        values (owner, task_ids[1], types[1], queues[1], priorities[1], due, max_retries[1], timeouts[1],
            payloads[1]::json, requests[1], traces[1], of_schedule, uniques[1], moment,
            case when is_charged then moment end);
        if due > moment then
            insert into scheduled_tasks (company_id, task_id, queue, run_after, priority, type)
            values (owner, task_ids[1], queues[1], due, priorities[1], types[1]);
        else
            insert into pending_tasks (queue, company_id, priority, run_after, task_id, type)
            values (queues[1], owner, priorities[1], due, task_ids[1], types[1]);
        end if;
        return query select 1, 'created', owner, task_ids[1], case when due > moment then 'scheduled' else 'pending' end,
            due, moment, null::text;
    else
        return query
        with item as materialized (
            select n.number::integer, n.task_id, n.type, n.payload, n.queue, n.priority, n.max_retries, n.timeout,
                n.tags::text[] as tags, n.unique_key, n.request, n.trace,
                coalesce(n.run_after, moment + make_interval(secs => n.delay), moment) as run_after
            from unnest(task_ids, types, payloads, queues, priorities, run_afters, delays, max_retries, timeouts, tag_lists,
                uniques, requests, traces) with ordinality
                as n(task_id, type, payload, queue, priority, run_after, delay, max_retries, timeout, tags, unique_key,
                    request, trace, number)
            where not earlier ? n.number::text
        ), recorded as (
            insert into tasks (company_id, id, type, queue, priority, run_after, max_retries, timeout_seconds, payload,
                request_id, traceparent, schedule_id, tags, unique_key, created_at, reserved_at)
            select owner, i.task_id, i.type, i.queue, i.priority, i.run_after, i.max_retries, i.timeout,
                i.payload::json, i.request, i.trace, of_schedule, i.tags, i.unique_key, moment,
                case when is_charged then moment end
            from item i
        ), tagged as (
            insert into task_tags (company_id, tag, task_id)
            select owner, t.tag, i.task_id from item i cross join lateral unnest(i.tags) as t(tag)
        ), scheduled as (
            insert into scheduled_tasks (company_id, task_id, queue, run_after, priority, type)
            select owner, i.task_id, i.queue, i.run_after, i.priority, i.type from item i where i.run_after > moment
        ), processing as (
            insert into processing_tasks (company_id, task_id, queue, priority, run_after, type, event_number, worker_id,
                claim_token, claimed_at)
            select owner, i.task_id, '!inline', i.priority, i.run_after, i.type, 2, for_worker, with_token, moment
            from item i where with_token is not null
        ), pending as (
            insert into pending_tasks (queue, company_id, priority, run_after, task_id, type)
            select i.queue, owner, i.priority, i.run_after, i.task_id, i.type
            from item i where i.run_after <= moment and with_token is null
        )
        select i.number, 'created', owner, i.task_id,
            case when with_token is not null then 'processing' when i.run_after > moment then 'scheduled' else 'pending' end,
            i.run_after, moment, null
        from item i
        union all
        select e.key::integer, case when e.value ->> 'then' = 'return' then 'held' else 'replayed' end, owner,
            (e.value ->> 'task')::uuid, null, null, null, null
        from jsonb_each(earlier) e
        order by 1;
    end if;

    if with_token is null then
        perform join_rotation(owner, queues);
    end if;

    if is_charged and not is_reserved then
        select * into reservation from reserve(owner, wanted, moment);
        if reservation.outcome <> 'reserved' then
            delete from pending_tasks p where p.company_id = owner and p.task_id = any (task_ids);
            delete from scheduled_tasks s where s.company_id = owner and s.task_id = any (task_ids);
            delete from processing_tasks p where p.company_id = owner and p.task_id = any (task_ids);
            delete from tasks t where t.company_id = owner and t.id = any (task_ids);
            delete from task_tags t
            where tag_lists is not null and t.company_id = owner and t.task_id = any (task_ids)
                and t.tag in (
                    select x.tag from unnest(tag_lists) as l(tags) cross join lateral unnest(l.tags::text[]) as x(tag));
            perform give_keys_back(owner, keys, uniques, task_ids);
        end if;
    end if;
    if is_charged then
        return query select 0, reservation.outcome, owner, null::uuid, null::text, null::timestamptz,
            null::timestamptz, reservation.told;
    end if;
end
$$;

-- The company that an id or a slug names, or null.
create or replace function company_id(named text) returns uuid
language sql stable
set search_path from current
as $$
    select case when pg_input_is_valid(named, 'uuid') and length(named) = 36
        then (select c.id from companies c where c.id = named::uuid)
        else (select c.id from companies c where c.slug = named) end
$$;

-- Held by whoever submits for a company that has a limit on what it may have queued, until it commits. It is taken
-- before any idempotency key, so that nobody who holds it waits for another who wants it.
create or replace function hold_queue(of_company uuid) returns void
language sql volatile
set search_path from current
set lock_timeout = '2s'
as $$ select pg_advisory_xact_lock(hashtextextended('queue' || current_schema() || of_company::text, 0)) $$;

-- Whether a company may have so many more tasks waiting; none more it always may. Counts no more of them than it may have: there is no counter
-- that could drift. Lives on the (company_id, task_id) indexes.
create or replace function has_room(of_company uuid, wanted integer, most_queued integer) returns boolean
language sql stable
set search_path from current
set enable_seqscan = off
as $$
    select most_queued is null or wanted <= 0 or wanted <= most_queued and not exists (
        select from (
            (select from pending_tasks p where p.company_id = of_company limit most_queued)
            union all
            (select from scheduled_tasks s where s.company_id = of_company limit most_queued)
        ) queued
        offset greatest(most_queued - wanted, 0))
$$;

-- The company of a slug, or null: the one question about companies that whoever acts for a single one of them may ask of
-- all. It runs as the owner of the tables, so that it can be asked before the company is known.
create or replace function company_of_slug(of_slug text) returns uuid
language sql stable security definer
set search_path from current
as $$ select c.id from companies c where c.slug = of_slug $$;
