-- Put every company that has pending tasks, may be served and stands in no rotation back into it. Nothing should be
-- found: this is the net under join_rotation, for rows that an operator or a restored backup left behind; and it is
-- how a company that is no longer paused comes back.
-- Lives on pending_tasks_pkey, walked company by company, and lines_pkey.

create or replace function heal_rotation(of_company uuid default null) returns integer
language plpgsql volatile
set search_path from current
set enable_seqscan = off
as $$
#variable_conflict use_column
declare
    forgotten record;
    healed integer := 0;
begin
    for forgotten in
        with recursive line as (
            (select p.queue, p.company_id from pending_tasks p order by p.queue, p.company_id limit 1)
            union all
            select n.queue, n.company_id from line l cross join lateral (
                select p.queue, p.company_id from pending_tasks p
                where (p.queue, p.company_id) > (l.queue, l.company_id)
                order by p.queue, p.company_id limit 1
            ) n
        )
        select l.company_id, array_agg(l.queue) as queues
        from line l join companies c on c.id = l.company_id
        where not c.paused and (of_company is null or c.id = of_company)
            and not starts_with(l.queue, '!')  -- set aside, see park.sql
            and not exists (select from lines x where x.company_id = l.company_id and x.queue = l.queue)
        group by l.company_id order by l.company_id
    loop
        perform join_rotation(forgotten.company_id, forgotten.queues);
        healed := healed + cardinality(forgotten.queues);
    end loop;
    return healed;
end
$$;

-- Where the turn of a line is: in its queue, or, while the line rests, beside it.
create or replace function turn_queue(of_line lines) returns text
language sql immutable
as $$ select case when of_line.rests_place is null then of_line.queue else '!' || of_line.queue end $$;

-- Give lines without a turn one again, and drop what a line has beyond one. Called when heal_rotation is; its own net
-- is the cell's lock, under which lines and turns never differ.
create or replace function heal_turns() returns integer
language plpgsql volatile
set search_path from current
as $$
declare
    healed integer;
begin
    if not exists (
        select from lines l full join turns t on t.company_id = l.company_id and t.queue = turn_queue(l)
        where l.queue is null or t.queue is null or l.rests_place <> t.place
    ) and (select count(*) from lines) = (select count(*) from turns) then
        return 0;
    end if;
    perform pg_advisory_xact_lock(cell_lock());
    update lines l set rests_place = null, rests_until = null, full_since = null, rests_below = null
    where l.rests_place is not null and not exists (
        select from turns t
        where t.queue = turn_queue(l) and t.place = l.rests_place and t.company_id = l.company_id);
    delete from turns t
    where not exists (select from lines l where l.company_id = t.company_id and turn_queue(l) = t.queue)
        or exists (select from turns x where x.queue = t.queue and x.company_id = t.company_id and x.place > t.place);
    insert into turns (queue, place, company_id)
    select l.queue, place_reached(l.queue), l.company_id from lines l
    where not exists (select from turns t where t.company_id = l.company_id and t.queue = turn_queue(l));
    get diagnostics healed = row_count;
    return healed;
end
$$;
