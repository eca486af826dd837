-- The place of the `ahead`-th turn after a place, for a company of this weight: its turns stand at (n - 1/2) / weight
-- for every whole n. The small term keeps a rounded place from being taken for the turn before it.

create or replace function turn_place(after numeric, weight integer, ahead integer) returns numeric
language sql immutable
as $$ select round((floor(after * weight + 0.500001) + ahead - 0.5) / weight, 12) $$;

-- Give a company a turn in the queues where it has none, at the place that each rotation has reached.
-- Whoever makes a company's work claimable calls this in the same transaction. It takes the company's lock, shared,
-- until that transaction ends: see company_lock.

create or replace function join_rotation(of_company uuid, in_queues text[]) returns void
language plpgsql volatile
set search_path from current
as $$
begin
    perform pg_advisory_xact_lock_shared(company_lock(of_company));
    insert into turns (company_id, queue, place)
    select of_company, q.queue, coalesce((select r.place from rotations r where r.queue = q.queue), 0)
    from (select distinct unnest(in_queues) as queue) q
    order by q.queue
    on conflict do nothing;
end
$$;
