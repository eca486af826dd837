-- Have the moves of a task told for some seconds, by NOTIFY on the channel `<schema>.moves`.
-- Nobody waits for most tasks, and a NOTIFY makes commits wait for each other: so only moves of these are told.
-- Lives on watches_pkey.

create or replace function watch(of_company uuid, of_task uuid, for_seconds double precision) returns void
language sql volatile
set search_path from current
as $$
    insert into watches as w (company_id, task_id, until)
    values (of_company, of_task, clock_timestamp() + make_interval(secs => for_seconds))
    on conflict (company_id, task_id) do update set until = excluded.until where w.until < excluded.until
$$;

-- Wait for the end of a move that is under way, which began before the watch was there to be seen. To be called when
-- the watch is committed: every later move finds it, and what was moved before is there to be read.
-- Safe because whoever moves a task removes the row of its place, or locks its record if it has ended.
-- Lives on the (company_id, task_id) index of each table.
create or replace function wait_for_move(of_company uuid, of_task uuid) returns void
language plpgsql volatile
set search_path from current
set enable_seqscan = off
as $$
begin
    perform from scheduled_tasks s where s.company_id = of_company and s.task_id = of_task for key share;
    if not found then
        perform from pending_tasks p where p.company_id = of_company and p.task_id = of_task for key share;
    end if;
    if not found then
        perform from processing_tasks p where p.company_id = of_company and p.task_id = of_task for key share;
    end if;
    if not found then
        perform from tasks t where t.company_id = of_company and t.id = of_task for key share;
    end if;
end
$$;

-- Whether any task is watched. Safe because it is volatile: it looks when it is called, not when the statement that calls
-- it began; so it is to be called when rows have been moved. Lives on watches_until_idx.
create or replace function somebody_watches() returns boolean
language sql volatile
set search_path from current
set enable_seqscan = off
as $$ select exists (select from watches w where w.until > clock_timestamp()) $$;

-- Tell of these tasks, which were moved in this transaction, if they are watched.
-- Safe because it is volatile: it looks when the rows are moved, not when the statement that calls it began.
-- Lives on watches_until_idx, whose end says that nobody watches anything, and watches_pkey.
create or replace function tell_moves(companies uuid[], task_ids uuid[]) returns void
language plpgsql volatile
set search_path from current
set enable_seqscan = off
set enable_bitmapscan = off
set enable_hashjoin = off
set enable_mergejoin = off
set enable_sort = off
as $$
declare
    moment constant timestamptz := clock_timestamp();
begin
    perform from watches w where w.until > moment order by w.until desc limit 1;
    if found then
        perform pg_notify(current_schema() || '.moves', m.task_id::text)
        from unnest(companies, task_ids) as m(company_id, task_id)
        cross join lateral (
            select from watches w
            where w.company_id = m.company_id and w.task_id = m.task_id and w.until > moment
            offset 0) w;
    end if;
end
$$;
