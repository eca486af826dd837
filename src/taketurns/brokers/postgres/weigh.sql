-- Add up the weight of the companies that have tasks waiting or running, as far as a claim needs it for its shares: up
-- to `enough`, and two companies that wait. It goes on behind the company that was weighed last; those that hold tasks
-- are in the sum from the beginning. Nobody is counted who has reached a limit.
-- The first few are asked for their tasks; of more, one that has run out counts until the rotation has passed its place.
-- Safe because it runs under the cell's lock. Lives on lines_awake_idx and pending_tasks_pkey.

create or replace function weigh(
    inout total_weight bigint,
    inout companies_waiting integer,
    inout weighed uuid,
    enough bigint,
    moment timestamptz,
    holders uuid[],
    full_companies uuid[],
    taken_companies uuid[],
    some_are_paused boolean,
    types_are_paused boolean,
    is_over_dead_rows boolean
)
language plpgsql volatile
set search_path from current
as $$
#variable_conflict use_column
declare
    -- Up to how many companies each is looked at before it counts as one that waits.
    few constant integer := 100;
    -- How far a line is searched past tasks of paused types.
    look_ahead constant integer := 100;
    nobody constant uuid := '00000000-0000-0000-0000-000000000000';
    waiting record;
begin
    for waiting in
        select r.company_id, c.weight
        from (
            select d.company_id, row_number() over (order by d.company_id) as number
            from (
                select distinct l.company_id from lines l
                where l.company_id > weighed and l.rests_place is null
                    and not (some_are_paused and exists (
                        select from pauses z
                        where z.company_id in (nobody, l.company_id) and z.queue = l.queue and z.type = ''
                            and (z.until is null or z.until > moment)))
            ) d
        ) r
        cross join lateral (select c.* from companies c where c.id = r.company_id and not c.paused offset 0) c
        where r.company_id <> all (full_companies)
            and case when c.rate_tasks is null then true
                else 0 < starts_left(c.rate_tasks, c.rate_seconds, c.rate_burst,
                    owes(c.id, c.rate_tasks, c.rate_seconds, c.rate_burst, moment)) end
            and (is_over_dead_rows or r.number > few or r.company_id = any (taken_companies) or exists (
                select
                from lines l
                cross join lateral (
                    select p.type from pending_tasks p
                    where p.queue = l.queue and p.company_id = l.company_id
                    order by p.queue, p.company_id, p.priority, p.run_after, p.task_id
                    limit case when types_are_paused then look_ahead else 1 end) p
                where l.company_id = r.company_id and not (types_are_paused and exists (
                    select from pauses z
                    where z.company_id in (nobody, l.company_id) and z.queue in ('', l.queue) and z.type = p.type
                        and (z.until is null or z.until > moment)))
                offset 0))
        order by r.company_id
    loop
        weighed := waiting.company_id;
        companies_waiting := companies_waiting + 1;
        if waiting.company_id <> all (holders) then
            total_weight := total_weight + waiting.weight;
        end if;
        exit when total_weight >= enough and companies_waiting > 1;
    end loop;
end
$$;
