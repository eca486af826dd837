-- Give a turn to every company that has pending tasks, may be served and stands in no rotation. Nothing should be
-- found: this is the net under join_rotation, for rows that an operator or a restored backup left behind.
-- Lives on pending_tasks_pkey, walked company by company, and turns_pkey.

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
            and not exists (select from turns t where t.company_id = l.company_id and t.queue = l.queue)
        group by l.company_id order by l.company_id
    loop
        perform join_rotation(forgotten.company_id, forgotten.queues);
        healed := healed + cardinality(forgotten.queues);
    end loop;
    return healed;
end
$$;
