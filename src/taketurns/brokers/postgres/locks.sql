-- The advisory locks of a cell. Their keys carry the schema, so that cells of one database do not meet.
--
-- cell_lock: held by a claim while it decides, so that companies are compared by one claimer at a time.
-- company_lock: shared by whoever makes work of a company claimable, until it commits; exclusive for whoever takes
-- the company's row out of `turns`. So no row leaves while work that its claimer cannot see yet is on its way in.
-- prune_lock: held by whoever looks for tasks that were kept long enough, so that one of many workers does.

create or replace function cell_lock() returns bigint
language sql stable
set search_path from current
as $$ select hashtextextended(current_schema(), 0) $$;

create or replace function company_lock(of_company uuid) returns bigint
language sql stable
set search_path from current
as $$ select hashtextextended(current_schema() || of_company::text, 0) $$;

create or replace function prune_lock() returns bigint
language sql stable
set search_path from current
as $$ select hashtextextended(current_schema() || 'prune', 0) $$;

-- The same, where the cell's schema is known: a function that need not look for it is inlined.

create or replace function cell_lock(of_cell text) returns bigint
language sql immutable
as $$ select hashtextextended(of_cell, 0) $$;

create or replace function company_lock(of_cell text, of_company uuid) returns bigint
language sql immutable
as $$ select hashtextextended(of_cell || of_company::text, 0) $$;
