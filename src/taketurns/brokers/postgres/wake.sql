-- Wake the workers of every queue in which a company has a line: it may be given more turns than before.

create or replace function wake(of_company uuid) returns void
language sql volatile
set search_path from current
as $$ select pg_notify(current_schema() || '.tasks', l.queue) from lines l where l.company_id = of_company $$;
