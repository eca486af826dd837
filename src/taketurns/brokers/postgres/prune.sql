-- Forget finished tasks that were kept long enough, at most `most` of them, with their events; expired keys;
-- and watches that are over; and operations that ended 30 days ago. Says whether there may be more to do at once.
-- How long a task is kept is told by its company for how it has ended, or else by the cell (`keep_…`).
-- Safe because one pruner at a time looks for tasks, skips those that others hold, and only takes finished ones.
-- Lives on idempotency_keys_expires_at_idx and watches_until_idx, and on what find_old_tasks does.

create or replace function prune(
    keep_completed interval,
    keep_failed interval,
    keep_cancelled interval,
    most integer,
    at timestamptz default null
) returns table (tasks integer, keys integer, has_more boolean)
language plpgsql volatile
set search_path from current
set enable_seqscan = off
set enable_hashjoin = off
set enable_mergejoin = off
set jit = off
as $$
#variable_conflict use_column
declare
    moment constant timestamptz := coalesce(at, clock_timestamp());
    old tid[];
    may_be_more boolean;
begin
    select f.row_ids, f.has_more into old, may_be_more
    from find_old_tasks(keep_completed, keep_failed, keep_cancelled, most, moment) f;

    return query
    with forgotten as (
        delete from tasks t where t.ctid = any (old) returning t.company_id, t.id, t.reserved_at, t.tags, t.unique_key
    ), kept as (
        insert into quota_changes (company_id, hour_starts_at, kept)
        select f.company_id, date_trunc('hour', f.reserved_at, 'UTC'), count(*)
        from forgotten f where f.reserved_at is not null
        group by 1, 2
    ), events as (
        delete from task_events e using forgotten f where e.company_id = f.company_id and e.task_id = f.id
    ), untagged as (
        delete from task_tags g using (select f.company_id, f.id, unnest(f.tags) as tag from forgotten f) f
        where g.company_id = f.company_id and g.tag = f.tag and g.task_id = f.id
    ), freed as (
        delete from unique_keys u using forgotten f
        where u.company_id = f.company_id and u.key = f.unique_key and u.task_id = f.id
    ), expired as (
        delete from idempotency_keys k
        where k.ctid = any (array(
            select x.ctid from idempotency_keys x where x.expires_at <= moment order by x.expires_at limit most
            for update skip locked))
        returning 1
    ), unwatched as (
        delete from watches w
        where w.ctid = any (array(select x.ctid from watches x where x.until <= moment for update skip locked))
    ), unheard as (
        delete from heartbeats h
        where h.beat_at < moment - case h.kind when 'worker' then interval '7 days' else interval '90 days' end
    ), over as (
        delete from operations o
        where o.ctid = any (array(
            select x.ctid from operations x where x.finished_at < moment - interval '30 days'
            order by x.finished_at limit most
            for update skip locked))
    ), idle as (
        delete from budgets b
        where b.ctid = any (array(select x.ctid from budgets x where x.idle_at < moment limit most for update skip locked))
    )
    select n.forgotten, n.expired, may_be_more or n.expired >= most
    from (select (select count(*)::integer from forgotten) as forgotten,
        (select count(*)::integer from expired) as expired) n;
end
$$;

-- Lock tasks that were kept long enough, at most `most`.
-- Who ended long ago was created before that, and ids rise with the time of creation. So the tasks of a company are
-- walked by their ids, for each status by itself, up to the first that is too young to have been kept long enough; the
-- walk goes on from the place where it ended before (`prunings`), and what is kept behind that costs nothing. Tasks that
-- it passed by, because they had not ended or are kept for longer, are seen again when the walk begins again: after a
-- tenth of the retention, but not sooner than in an hour, nor later than in a day. That is how much longer a task may be
-- kept that took more than ten minutes from its creation to its end; others are still before the place.
-- Companies are visited in the order of their ids, from the one on that was visited last (`prunings` of company nil).
-- Each call looks at no more than ten times `most` tasks, and at 1,000 companies.
-- Lives on companies_pkey, prunings_pkey, tasks_pkey and tasks_company_id_stopped_as_id_idx; see decisions/0017.
create or replace function find_old_tasks(
    keep_completed interval,
    keep_failed interval,
    keep_cancelled interval,
    most integer,
    moment timestamptz,
    out row_ids tid[],
    out has_more boolean
)
language plpgsql volatile
set search_path from current
set enable_seqscan = off
set enable_bitmapscan = off
set enable_sort = off
set jit = off
as $$
#variable_conflict use_column
declare
    nobody constant uuid := '00000000-0000-0000-0000-000000000000';
    most_companies constant integer := 1000;
    visited_last uuid;
    walk record;
    cutoff timestamptz;
    first_too_young uuid;
    starts_anew boolean;
    reached uuid;
    begins_again_at timestamptz;
    is_through boolean;
    wanted integer;
    found_last uuid;
    found_old tid[];
    looked_at integer := 0;
    left_to_look_at integer := 10 * most;
    walks integer := 0;
    has_come_round boolean := false;
begin
    row_ids := '{}';
    has_more := false;
    if not pg_try_advisory_xact_lock(prune_lock()) then
        return;
    end if;
    select p.place into visited_last from prunings p where p.company_id = nobody;
    visited_last := coalesce(visited_last, nobody);

    for walk in
        select c.id as company_id, c.comes_again, k.status, k.keep, p.keep as kept, p.place, p.begins_again_at
        from (
            (select n.*, false as comes_again from companies n where n.id > visited_last
             order by n.id limit most_companies)
            union all
            (select n.*, true from companies n where n.id <= visited_last
             order by n.id limit most_companies)
            order by comes_again, id
            limit most_companies
        ) c
        cross join lateral (values
            ('completed', coalesce(make_interval(secs => c.keep_completed_seconds), keep_completed)),
            ('failed', coalesce(make_interval(secs => c.keep_failed_seconds), keep_failed)),
            ('cancelled', coalesce(make_interval(secs => c.keep_cancelled_seconds), keep_cancelled))
        ) k(status, keep)
        left join prunings p on p.company_id = c.id and p.status = k.status
        order by c.comes_again, c.id
    loop
        walks := walks + 1;
        visited_last := walk.company_id;
        has_come_round := walk.comes_again;
        cutoff := moment - walk.keep;
        first_too_young := first_id(cutoff);
        starts_anew := walk.place is null or walk.keep <> walk.kept or coalesce(walk.begins_again_at <= moment, false);
        reached := case when starts_anew then nobody else walk.place end;
        is_through := false;
        loop
            wanted := least(most - cardinality(row_ids), left_to_look_at);
            exit when wanted <= 0;
            if walk.status = 'completed' then
                select count(*), (array_agg(x.id order by x.id))[count(*)], array_agg(x.row_id) filter (where x.is_old)
                into looked_at, found_last, found_old
                from (
                    select t.ctid as row_id, t.id, t.stopped_as is null and t.finished_at < cutoff as is_old
                    from tasks t
                    where t.company_id = walk.company_id and t.id > reached and t.id < first_too_young
                    order by t.id limit wanted
                ) x;
            else
                select count(*), (array_agg(x.id order by x.id))[count(*)], array_agg(x.row_id) filter (where x.is_old)
                into looked_at, found_last, found_old
                from (
                    select t.ctid as row_id, t.id, t.finished_at < cutoff as is_old
                    from tasks t
                    where t.company_id = walk.company_id and t.stopped_as is not null
                        and (t.stopped_as, t.id) > (walk.status, reached)
                        and (t.stopped_as, t.id) < (walk.status, first_too_young)
                    order by t.stopped_as, t.id limit wanted
                ) x;
            end if;
            row_ids := row_ids || array(
                select t.ctid from tasks t
                where t.ctid = any (found_old) and t.finished_at < cutoff
                    and t.stopped_as is not distinct from nullif(walk.status, 'completed')
                for update skip locked);
            left_to_look_at := left_to_look_at - looked_at;
            reached := coalesce(found_last, reached);
            is_through := looked_at < wanted;
            exit when is_through;
        end loop;

        begins_again_at := case when not starts_anew then walk.begins_again_at end;
        if is_through then
            reached := least(reached, first_id(cutoff - interval '10 minutes'));
            begins_again_at := coalesce(
                begins_again_at,
                moment + greatest(least(walk.keep / 10, interval '1 day'), interval '1 hour'));
        end if;
        if (reached, walk.keep, begins_again_at) is distinct from (walk.place, walk.kept, walk.begins_again_at)
            and (reached <> nobody or walk.place is not null)
        then
            perform remember_pruning(walk.company_id, walk.status, walk.keep, reached, begins_again_at);
        end if;
        has_more := not is_through;
        exit when has_more;
    end loop;

    if walks > 0 then
        perform remember_pruning(nobody, 'any', interval '0', visited_last, null);
        has_more := has_more or (walks >= 3 * most_companies and not has_come_round);
    end if;
end
$$;

-- Remember how far a walk has come; the nil place is the beginning, which needs no row. Of a company that is being
-- deleted nothing is remembered anew.
create or replace function remember_pruning(
    of_company uuid,
    of_status text,
    of_keep interval,
    of_place uuid,
    of_begins_again_at timestamptz
) returns void
language plpgsql volatile
set search_path from current
set enable_seqscan = off
set jit = off
as $$
declare
    nobody constant uuid := '00000000-0000-0000-0000-000000000000';
begin
    if of_place = nobody then
        delete from prunings p where p.company_id = of_company and p.status = of_status;
        return;
    end if;
    update prunings p set keep = of_keep, place = of_place, begins_again_at = of_begins_again_at
    where p.company_id = of_company and p.status = of_status;
    if found then
        return;
    end if;
    perform from companies c where c.id = of_company for key share;
    if found or of_company = nobody then
        insert into prunings (company_id, status, keep, place, begins_again_at)
        values (of_company, of_status, of_keep, of_place, of_begins_again_at);
    end if;
end
$$;

-- The first id of a moment: UUIDv7 (RFC 9562, section 5.7) begin with milliseconds.
create or replace function first_id(of_moment timestamptz) returns uuid
language sql stable
as $$
    select rpad(lpad(to_hex(greatest(floor(extract(epoch from of_moment) * 1000), 0)::bigint), 12, '0'), 32, '0')::uuid
$$;
