-- Take one call out of a budget, or tell in how many seconds to ask again.
-- A budget's row has the calls of its last window, gathered in at most 65 moments; those of one moment count until the
-- last of them is out of the window. So no window has more than `most`, and the row stays small whatever `most` is.
-- Safe because the budget's row is locked before the clock is read. It is committed at once, before the call is made.
-- Who is refused stands in a line of its company, at the pace of the budget: a company with many tasks comes back no
-- more often than one with few. `owner` has the budget: the company, or nobody (the nil UUID) for the cell as a whole.
-- Lives on budgets_pkey.

create or replace function spend(
    budget text,
    owner uuid,
    spender uuid,
    most integer,
    per double precision,
    at timestamptz default null
) returns double precision
language plpgsql volatile
set search_path from current
as $$
#variable_conflict use_variable
declare
    reach constant interval := make_interval(secs => per);
    held budgets;
    moment timestamptz;
    moments timestamptz[];
    counts integer[];
    used bigint;
    last integer;
    free_at timestamptz;
begin
    held := locked_budget(budget, owner);
    moment := coalesce(at, clock_timestamp());
    select coalesce(array_agg(u.moment order by u.moment), '{}'), coalesce(array_agg(u.count order by u.moment), '{}'),
        coalesce(sum(u.count), 0)
    into moments, counts, used
    from unnest(held.moments, held.counts) as u(moment, count)
    where u.moment > moment - reach;

    if used < most and moment >= held.cool_until then
        last := cardinality(moments);
        if last > 0 and trunc(extract(epoch from moments[last]) * 64 / per::numeric)
                >= trunc(extract(epoch from moment) * 64 / per::numeric) then
            moments[last] := greatest(moments[last], moment);
            counts[last] := counts[last] + 1;
        else
            moments := moments || moment;
            counts := counts || 1;
        end if;
        update budgets b
        set moments = moments, counts = counts, idle_at = greatest(b.idle_at, moments[cardinality(moments)] + reach)
        where b.company_id = owner and b.name = budget;
        return null;
    end if;

    select min(u.moment) + reach into free_at
    from (
        select u.moment, sum(u.count) over (order by u.moment) as gone
        from unnest(moments, counts) as u(moment, count)
    ) u
    where used >= most and used - u.gone < most;
    return line_up(budget, spender, greatest(free_at, held.cool_until), reach, most, moment);
end
$$;

-- Let nobody spend for some seconds, or until a moment, and tell in how many seconds to ask again.
create or replace function cool_down(
    budget text,
    owner uuid,
    spender uuid,
    most integer,
    per double precision,
    seconds double precision,
    until timestamptz,
    least_seconds double precision,
    most_seconds double precision,
    at timestamptz default null
) returns double precision
language plpgsql volatile
set search_path from current
as $$
#variable_conflict use_variable
declare
    held budgets;
    moment timestamptz;
    cool_until timestamptz;
begin
    held := locked_budget(budget, owner);
    moment := coalesce(at, clock_timestamp());
    seconds := coalesce(seconds, extract(epoch from until - moment));
    cool_until := greatest(
        held.cool_until, moment + make_interval(secs => least(greatest(seconds, least_seconds), most_seconds)));
    update budgets b set cool_until = cool_until, idle_at = greatest(b.idle_at, cool_until)
    where b.company_id = owner and b.name = budget;
    return line_up(budget, spender, cool_until, make_interval(secs => per), most, moment);
end
$$;

create or replace function locked_budget(budget text, owner uuid) returns budgets
language plpgsql volatile
set search_path from current
as $$
declare
    held budgets;
begin
    loop
        select b.* into held from budgets b where b.company_id = owner and b.name = budget for update;
        if found then
            return held;
        end if;
        insert into budgets (company_id, name) values (owner, budget) on conflict do nothing;
    end loop;
end
$$;

-- The next place in a company's line, in seconds from now: never before `free_at`, a pace after the one before, and a
-- little apart. A line that is longer than a day, or than the window, has no order any more.
create or replace function line_up(
    budget text,
    spender uuid,
    free_at timestamptz,
    reach interval,
    most integer,
    moment timestamptz
) returns double precision
language plpgsql volatile
set search_path from current
as $$
#variable_conflict use_variable
declare
    pace constant interval := reach / most;
    longest constant interval := greatest(reach, '1 day');
    held budgets;
    place timestamptz;
begin
    held := locked_budget(budget, spender);
    place := greatest(free_at, held.line_until);
    if place > free_at + longest then
        place := free_at + random() * longest;
    else
        update budgets b set line_until = place + pace, idle_at = greatest(b.idle_at, place + pace)
        where b.company_id = spender and b.name = budget;
    end if;
    return extract(epoch from place + random() * pace / 10 - moment);
end
$$;
