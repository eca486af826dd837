-- The place of the `ahead`-th turn after a place, for a company of this weight. A round is 32768 units long, and a company
-- of weight w has its turns at (n - 1/2) / w rounds for every whole n, rounded down to a unit. That is exact: two places
-- of weights up to 100 that differ at all are 1 / 19800 of a round apart, more than a unit, so units are ordered as
-- places are, and tell each of them from every other. See decisions/0010.

create or replace function turn_place(after bigint, weight integer, ahead integer) returns bigint
language sql immutable
as $$
    select after - after % 32768
        + (2 * ((2 * (after % 32768 + 1) * weight + 32768) / 65536 + ahead) - 1) * 32768 / (2 * weight)
$$;

-- Put a company into the rotation of the queues where it has no line yet: a newcomer's turn comes at the place that the
-- rotation has reached, as far as is known here. If it has moved on meanwhile, the turn is late, and taken at once.
-- Whoever makes a company's work claimable calls this in the same transaction. It takes the company's lock, shared,
-- until that transaction ends: see company_lock. A company's first line in a queue that another transaction keeps
-- uncommitted is waited for, but for no longer than this function's timeout. A company that is gone does not come back
-- with the tasks that it left: see delete_company.sql.
-- Lives on lines_pkey, rotations_pkey and companies_pkey.

create or replace function join_rotation(of_company uuid, in_queues text[]) returns void
language plpgsql volatile
set search_path from current
set lock_timeout = '2s'
as $$
declare
    joined text[];
begin
    perform pg_advisory_xact_lock_shared(company_lock(of_company));
    with joining as (
        insert into lines (company_id, queue)
        select distinct of_company, q.queue from unnest(in_queues) as q(queue)
        where exists (select from companies c where c.id = of_company)
        order by q.queue
        on conflict do nothing
        returning queue
    )
    select array_agg(j.queue) into joined from joining j;
    if joined is not null then
        -- After its lines: a company's role sees how far the rotation is only of queues where the company stands.
        insert into turns (queue, place, company_id)
        select j.queue, place_reached(j.queue), of_company from unnest(joined) as j(queue)
        on conflict do nothing;
    end if;
end
$$;

-- The place that the rotation of a queue has reached.
create or replace function place_reached(in_queue text) returns bigint
language sql stable
set search_path from current
as $$ select coalesce((select r.place from rotations r where r.queue = in_queue order by r.place desc limit 1), 0) $$;
