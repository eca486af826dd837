-- Delete a company, its schedules, its keys and its place in the rotations. Answers `deleted`, `open` when it has tasks
-- that have not ended and `is_forced` is not said, or nothing when there is no such company. What it leaves is told by
-- its row in `deletions`, and forgotten afterwards, in batches: of its tasks that wait, none comes into the rotation
-- again (see join_rotation), and of those that run, each loses its claim here, or is just being settled.
-- Safe because the company's lock keeps work from coming in, and because line and turn go under the cell's lock, for no
-- claim may see the one without the other. The places of its turns are looked up before: without work they stay.
-- Lives on the (company_id, task_id) index of each place and on the primary keys; the look for its turns reads `turns`
-- once, before the cell's lock is taken.

create or replace function delete_company(
    of_company uuid,
    patience_milliseconds integer,
    is_forced boolean default false
) returns text
language plpgsql volatile
set search_path from current
set enable_seqscan = off
as $$
#variable_conflict use_column
declare
    queues text[];
    places numeric[];
    is_deleted boolean;
begin
    perform set_config('lock_timeout', patience_milliseconds::text, true);
    perform pg_advisory_xact_lock(company_lock(of_company));
    -- One statement, so that a task that moves from one place to another is seen in one of them.
    if not is_forced and exists (
        select from scheduled_tasks where company_id = of_company
        union all select from pending_tasks where company_id = of_company
        union all select from processing_tasks where company_id = of_company
    ) then
        return 'open';
    end if;
    select array_agg(t.queue), array_agg(t.place) into queues, places from turns t where t.company_id = of_company;
    delete from quota_usage where company_id = of_company;
    perform pg_advisory_xact_lock(cell_lock());
    delete from lines where company_id = of_company;
    delete from turns t using unnest(queues, places) as known(queue, place)
    where t.queue = known.queue and t.place = known.place and t.company_id = of_company;
    -- Those that a claim before the lock has taken, too. Who holds one now may wait for the company's lock.
    delete from processing_tasks p where p.ctid = any (array(
        select x.ctid from processing_tasks x where x.company_id = of_company for update skip locked));
    delete from buckets where company_id = of_company;
    delete from pauses where company_id = of_company;
    delete from schedules where company_id = of_company;
    delete from companies c where c.id = of_company;
    is_deleted := found;
    if is_deleted then
        insert into deletions (company_id) values (of_company);
    end if;
    -- Last, for whoever makes a key shares the company's row until it is there.
    delete from api_keys where company_id = of_company;
    return case when is_deleted then 'deleted' end;
end
$$;
