-- What a claim found, which has `began` to look at that time: nothing older than `oldest_claim` is held. Once a second,
-- and less often when that takes long, it began at the beginning; only then it is asked whether somebody has kept a
-- snapshot for two seconds, from before the last hundred transactions; claims that wait for their turn at the lock keep
-- theirs for less.
-- Each look leaves a row and takes the one before away; the newest row is the first that is met from the end.
-- Safe because it runs under the cell's lock.
-- Lives on looks_pkey.

create or replace function look(
    moment timestamptz, is_over_dead_rows boolean, oldest_claim timestamptz, began timestamptz
) returns void
language plpgsql volatile
set search_path from current
as $$
#variable_conflict use_variable
declare
    last looks;
begin
    select * into last from looks l order by l.number desc limit 1;
    if not is_over_dead_rows then
        last.from_the_beginning_at := moment;
        last.took := clock_timestamp() - began;
        last.has_old_snapshot := exists (
            select from pg_stat_get_activity(null) a
            where a.backend_xmin is not null and age(a.backend_xmin) > 100 and a.pid <> pg_backend_pid()
                and (a.xact_start < moment - interval '2 seconds') is not false
                and a.backend_type <> 'autovacuum worker'
                and coalesce(a.datid, 0) in (0, (select d.oid from pg_database d where d.datname = current_database())));
    end if;
    delete from looks l where l.number = last.number;
    insert into looks (number, from_the_beginning_at, took, has_old_snapshot, oldest_claim)
    values (coalesce(last.number, 0) + 1, last.from_the_beginning_at, last.took, last.has_old_snapshot, oldest_claim);
end
$$;

-- The head tasks of these turns, at most `most`, and the places of the turns that they take: of each line what has come
-- before its floor, and what stands behind it. See claim.sql, which does the same without floors.
-- Lives on pending_tasks_pkey.
create or replace function heads_above_floors(
    in_queue text,
    turn_rows tid[],
    companies uuid[],
    places bigint[],
    weights integer[],
    wanted integer[],
    reached bigint,
    most integer,
    ahead integer,
    skipped_types text[],
    types_are_paused boolean,
    moment timestamptz,
    out rows tid[],
    out turn_places bigint[]
)
language plpgsql volatile
set search_path from current
as $$
#variable_conflict use_column
declare
    nobody constant uuid := '00000000-0000-0000-0000-000000000000';
begin
    select array_agg(h.row_id), array_agg(h.turn_place) into rows, turn_places
    from (
        select p.row_id, case when p.turn = 1 then c.place
            else turn_place(greatest(c.place, reached), c.weight, p.turn - 1) end as turn_place
        from unnest(turn_rows, companies, places, weights, wanted)
            as c(row_id, company_id, place, weight, turns)
        left join lateral (
            select t.floor_priority, t.floor_run_after, t.floor_task_id from turns t
            where t.ctid = c.row_id
        ) f on true
        cross join lateral (
            select h.row_id, (row_number() over ())::integer as turn
            from (
                select p.* from (
                    (
                        select p.ctid as row_id, p.task_id, p.priority, p.run_after, p.type
                        from pending_tasks p
                        where p.queue = in_queue and p.company_id = c.company_id
                            and p.priority < coalesce(f.floor_priority, 32767)
                        order by p.queue, p.company_id, p.priority, p.run_after, p.task_id
                        limit c.turns + ahead
                    )
                    union all
                    (
                        select p.ctid as row_id, p.task_id, p.priority, p.run_after, p.type
                        from pending_tasks p
                        where p.queue = in_queue and p.company_id = c.company_id
                            and (p.priority, p.run_after, p.task_id)
                                >= (f.floor_priority, f.floor_run_after, f.floor_task_id)
                        order by p.queue, p.company_id, p.priority, p.run_after, p.task_id
                        limit c.turns + ahead
                    )
                ) p
                where p.type <> all (skipped_types) and not (types_are_paused and exists (
                    select from pauses z
                    where z.company_id in (nobody, c.company_id) and z.queue in ('', in_queue)
                        and z.type = p.type and (z.until is null or z.until > moment)))
                order by p.priority, p.run_after, p.task_id
                limit c.turns
            ) h
        ) p
        order by turn_place, c.company_id
        limit most
    ) h;
end
$$;

-- Move the places of turns that were served on, and their floors to what was taken last.
create or replace function advance_floors(
    turn_rows tid[],
    companies uuid[],
    places bigint[],
    taken_companies uuid[],
    taken_tasks uuid[]
) returns void
language plpgsql volatile
set search_path from current
as $$
begin
    update turns t
    set place = s.place, floor_priority = p.priority, floor_run_after = p.run_after, floor_task_id = p.task_id
    from (
        select c.row_id, c.company_id, c.place, l.task_id
        from unnest(turn_rows, companies, places) as c(row_id, company_id, place)
        join (
            select distinct on (o.company_id) o.company_id, o.task_id
            from unnest(taken_companies, taken_tasks) with ordinality as o(company_id, task_id, turn)
            order by o.company_id, o.turn desc
        ) l on l.company_id = c.company_id
    ) s
    cross join lateral (
        select p.priority, p.run_after, p.task_id from processing_tasks p
        where p.company_id = s.company_id and p.task_id = s.task_id
        offset 0) p
    where t.ctid = s.row_id and t.company_id is not distinct from s.company_id;  -- so that no index is looked into
end
$$;
