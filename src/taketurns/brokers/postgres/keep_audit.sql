-- Refuse to change or remove what the audit says.
-- Safe against whoever comes by Taketurns; the owner of the table can take the trigger away, and no role that owns
-- nothing can.

create or replace function keep_audit() returns trigger
language plpgsql
set search_path from current
as $$
begin
    raise exception 'audit entries are never changed or removed'
        using errcode = 'integrity_constraint_violation';
end
$$;
