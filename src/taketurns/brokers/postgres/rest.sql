-- A line whose company has reached a limit rests: its turn leaves the walk of the claims, and comes back in the first
-- claim that may serve it. See decisions/0013.
-- Safe because both run under the cell's lock. They live on lines_rests_until_idx and lines_full_since_idx.

-- Let these turns rest: until a moment, or until their companies hold fewer hands.
create or replace function rest(
    moment timestamptz,
    turn_rows tid[],
    queues text[],
    untils timestamptz[],
    belows integer[]
) returns void
language plpgsql volatile
set search_path from current
as $$
begin
    with resting as materialized (
        select r.row_id, r.queue, max(r.until) as until, max(r.below) as below
        from unnest(turn_rows, queues, untils, belows) as r(row_id, queue, until, below)
        group by r.row_id, r.queue
    ), left_the_walk as (
        update turns t set queue = '!' || r.queue from resting r
        where t.ctid = r.row_id and t.queue = r.queue
        returning t.company_id, r.queue, t.place, r.until, r.below
    )
    update lines l
    set rests_place = w.place, rests_until = case when w.below is null then w.until end,
        full_since = case when w.below is not null then moment end, rests_below = w.below
    from left_the_walk w where l.company_id = w.company_id and l.queue = w.queue;
end
$$;

-- Lines that have rested come back to where they were; over dead rows, to where the walk begins at the latest.
create or replace function end_rests(
    moment timestamptz,
    due_from timestamptz,
    full_from timestamptz,
    holders uuid[],
    holdings integer[],
    is_over_dead_rows boolean
) returns void
language plpgsql volatile
set search_path from current
as $$
declare
    -- How many lines whose time has come are brought back in one claim.
    may_return constant integer := 1000;
begin
    with rested as materialized (
        select l.ctid as row_id, l.company_id, l.queue, l.rests_place
        from lines l
        where l.rests_until >= due_from and l.rests_until <= moment
        order by l.rests_until limit may_return
        for update skip locked
    ), freed as materialized (
        select l.ctid as row_id, l.company_id, l.queue, l.rests_place
        from lines l
        left join unnest(holders, holdings) as h(company_id, hands) on h.company_id = l.company_id
        where l.full_since >= full_from and coalesce(h.hands, 0) < l.rests_below
        for update of l skip locked
    ), back as materialized (
        select * from rested union all select * from freed
    ), returned as (
        update turns t
        set queue = b.queue,
            place = case when is_over_dead_rows then greatest(t.place, (
                select r.lowest_turn from rotations r where r.queue = b.queue order by r.place desc limit 1))
                else t.place end
        from back b
        where t.queue = '!' || b.queue and t.place = b.rests_place and t.company_id = b.company_id
    )
    update lines l set rests_place = null, rests_until = null, full_since = null, rests_below = null
    from back b where l.ctid = b.row_id;
end
$$;
