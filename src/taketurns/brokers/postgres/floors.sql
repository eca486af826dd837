-- What a claim found: nothing older than `oldest_claim` is held. Once a second, and only then, it began at the
-- beginning, and it is asked whether somebody has kept a snapshot for two seconds, from before the last hundred
-- transactions; claims that wait for their turn at the lock keep theirs for less.
-- Each look leaves a row and takes the one before away; the newest row is the first that is met from the end.
-- Safe because it runs under the cell's lock.
-- Lives on looks_pkey.

create or replace function look(moment timestamptz, is_over_dead_rows boolean, oldest_claim timestamptz) returns void
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
        last.has_old_snapshot := exists (
            select from pg_stat_get_activity(null) a
            where a.backend_xmin is not null and age(a.backend_xmin) > 100 and a.pid <> pg_backend_pid()
                and (a.xact_start < moment - interval '2 seconds') is not false
                and a.backend_type <> 'autovacuum worker'
                and coalesce(a.datid, 0) in (0, (select d.oid from pg_database d where d.datname = current_database())));
    end if;
    delete from looks l where l.number = last.number;
    insert into looks (number, from_the_beginning_at, has_old_snapshot, oldest_claim)
    values (coalesce(last.number, 0) + 1, last.from_the_beginning_at, last.has_old_snapshot, oldest_claim);
end
$$;
