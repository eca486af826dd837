-- What failed tasks of one cause have in common.

-- The fingerprint of an error: of its class and the first line of its message, in which numbers, ids and what stands in
-- quotes do not count. Computed when a task has failed for good, and not for any other.
create or replace function error_fingerprint(error text) returns text
language sql immutable
as $$
    select left(encode(sha256(convert_to(
        regexp_replace(
            regexp_replace(
                regexp_replace(
                    left(split_part(error, E'\n', 1), 500),
                    '(?<!\w)''[^'']*''(?!\w)|"[^"]*"|`[^`]*`', '?', 'g'),
                '[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}|0x[0-9a-f]+|\m(?=[a-z]*[0-9])[0-9a-f]{8,}\M', '#', 'gi'),
            '[0-9]+([.,:][0-9]+)*', '#', 'g'),
        'UTF8')), 'hex'), 16)
$$;

-- The groups of a company's failed tasks, by type and fingerprint, those after one of them, at most `most`. Of each at
-- most `reach` tasks are looked at, those that were created last; `tasks` is greater than `reach` when there are more.
-- Lives on tasks_failures_idx, walked group by group.
create or replace function failures(
    owner uuid,
    after_type text,
    after_fingerprint text,
    most integer,
    reach integer
) returns table (
    type text,
    fingerprint text,
    tasks bigint,
    first_failed_at timestamptz,
    last_failed_at timestamptz,
    example_id uuid,
    example_error text
)
language plpgsql stable
set search_path from current
set enable_seqscan = off
set enable_bitmapscan = off
set enable_sort = off
set jit = off
as $$
#variable_conflict use_column
declare
    known record;
begin
    for number in 1..most loop
        select t.type, t.error_fingerprint into known from tasks t
        where t.company_id = owner and t.stopped_as = 'failed' and t.error_fingerprint is not null
            and (t.type, t.error_fingerprint) > (after_type, after_fingerprint)
        order by t.company_id, t.type, t.error_fingerprint, t.id limit 1;
        exit when not found;
        after_type := known.type;
        after_fingerprint := known.error_fingerprint;
        return query
        with looked_at as materialized (
            select t.id, t.finished_at from tasks t
            where t.company_id = owner and t.stopped_as = 'failed' and t.type = after_type
                and t.error_fingerprint = after_fingerprint
            order by t.company_id desc, t.type desc, t.error_fingerprint desc, t.id desc limit reach + 1
        )
        select after_type, after_fingerprint, g.tasks, g.first_failed_at, g.last_failed_at, e.id, e.error
        from (
            select count(*) as tasks, min(l.finished_at) as first_failed_at, max(l.finished_at) as last_failed_at
            from looked_at l) g
        cross join lateral (
            select t.id, t.error from tasks t
            where t.company_id = owner and t.id = (select l.id from looked_at l order by l.id desc limit 1)) e;
    end loop;
end
$$;
