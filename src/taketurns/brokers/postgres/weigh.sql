-- Add up who waits, as far as a claim needs it for its shares: their weight, and the hands that they hold, with those that
-- are free. First of those who hold any, then of others, as many as are needed until every share of a company of weight
-- `heaviest` is a single hand, and two who wait; it goes on behind the company that was weighed last. Nobody is counted
-- who has reached a limit. `taken_companies` had tasks when the count begins.
-- The first few are asked for their tasks; of more, one that has run out counts until the rotation has passed its place.
-- Safe because it runs under the cell's lock. Lives on lines_awake_idx and pending_tasks_pkey.

create or replace function weigh(
    inout total_weight bigint,
    inout shared_hands bigint,
    inout companies_waiting integer,
    inout weighed uuid,
    heaviest integer,
    free integer,
    moment timestamptz,
    holders uuid[],
    holdings integer[],
    started integer[],
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
    -- Up to how many companies of each kind are asked for their tasks, and how many that hold nothing at once.
    few integer := 100;
    at_once constant integer := 100;
    -- How far a line is searched past tasks of paused types.
    look_ahead constant integer := 100;
    nobody constant uuid := '00000000-0000-0000-0000-000000000000';
    are_holders boolean := weighed is null and holders <> '{}';
    wanted integer;
    seen record;
begin
    if weighed is null then
        weighed := nobody;
        total_weight := 0;
        shared_hands := free;
        companies_waiting := 0;
    end if;
    loop
        wanted := least(greatest(shared_hands * heaviest - total_weight, 2), at_once);
        select coalesce(sum(r.weight) filter (where r.waits), 0) as weight,
            coalesce(sum(r.hands) filter (where r.waits), 0) as hands,
            count(*) filter (where r.waits) as waiting, count(*) as companies,
            (array_agg(r.company_id order by r.company_id desc))[1] as last
        into seen
        from (
            select r.company_id, r.hands, c.weight,
                not c.paused and (c.max_in_flight > coalesce(r.hands, 0)) is not false
                    and case when c.rate_tasks is null then true
                        else 0 < starts_left(c.rate_tasks, c.rate_seconds, c.rate_burst,
                            owes(c.id, c.rate_tasks, c.rate_seconds, c.rate_burst, moment)
                                + coalesce(r.started, 0) * c.rate_seconds * 1000000::bigint) end
                    and (not are_holders and (is_over_dead_rows or r.number > few)
                        or r.company_id = any (taken_companies)
                        or exists (
                            select
                            from lines l
                            left join lateral (
                                select p.type from pending_tasks p
                                where not is_over_dead_rows and r.number <= few
                                    and p.queue = l.queue and p.company_id = l.company_id
                                order by p.queue, p.company_id, p.priority, p.run_after, p.task_id
                                limit case when types_are_paused then look_ahead else 1 end
                            ) p on true
                            where l.company_id = r.company_id and l.rests_place is null
                                and (is_over_dead_rows or r.number > few or p.type is not null)
                                and not (some_are_paused and exists (
                                    select from pauses z
                                    where z.company_id in (nobody, l.company_id) and z.queue in ('', l.queue)
                                        and z.type in ('', p.type) and (z.until is null or z.until > moment)))
                            offset 0)) as waits
            from (
                select h.company_id, h.hands, h.started, h.number
                from unnest(holders, holdings, started) with ordinality as h(company_id, hands, started, number)
                where are_holders
                union all
                select d.company_id, null, null, row_number() over ()
                from (
                    select distinct l.company_id from lines l
                    where l.company_id > weighed and l.rests_place is null and not are_holders
                        and l.company_id not in (select unnest(holders))
                        and not (some_are_paused and exists (
                            select from pauses z
                            where z.company_id in (nobody, l.company_id) and z.queue = l.queue and z.type = ''
                                and (z.until is null or z.until > moment)))
                    order by l.company_id
                    limit wanted
                ) d
            ) r
            left join lateral (select c.* from companies c where c.id = r.company_id offset 0) c on true
            offset 0
        ) r;
        total_weight := total_weight + seen.weight;
        shared_hands := shared_hands + seen.hands;
        companies_waiting := companies_waiting + seen.waiting;
        if not are_holders then
            weighed := coalesce(seen.last, weighed);
            few := few - seen.companies;
        end if;
        exit when total_weight >= shared_hands * heaviest and companies_waiting > 1
            or not are_holders and seen.companies < wanted;
        are_holders := false;
    end loop;
end
$$;
