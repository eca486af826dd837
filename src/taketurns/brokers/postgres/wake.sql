-- Let every line of a company come back that rests, and wake the workers of its queues: it may be given more turns than
-- before. If it may not after all, the next claim has it rest again.
-- Safe because it is called when the change is committed, and waits under the cell's lock for a claim that did not see
-- it and lets lines rest.

create or replace function wake(of_company uuid) returns void
language sql volatile
set search_path from current
as $$
    select pg_advisory_xact_lock(cell_lock());
    update lines l set rests_until = clock_timestamp(), full_since = null, rests_below = null
    where l.company_id = of_company and l.rests_place is not null;
    select pg_notify(current_schema() || '.tasks', l.queue) from lines l where l.company_id = of_company;
$$;
