-- The first usual claim: every eligible row is ranked within its company, and the lowest ranks are taken. The rows
-- are ranked in a snapshot from before they are locked, so what makes a row eligible is said again where it is locked.
--   psql "$URL" -f scripts/perf_explain_window.sql
begin;
explain (analyze, buffers, settings)
with ranked as (
    select t.id, t.created_at, row_number() over (partition by t.company_id order by t.created_at, t.id) as rank
    from usual.tasks t
    where t.status = 'pending' and t.run_after <= now()
), chosen as (
    select r.id, r.rank, r.created_at from ranked r order by r.rank, r.created_at, r.id limit 10
), locked as (
    select t.id
    from usual.tasks t
    join chosen c on c.id = t.id
    where t.status = 'pending' and t.run_after <= now()
    order by c.rank, c.created_at, c.id
    for update of t skip locked
)
update usual.tasks t
set status = 'processing', started_at = now(), worker_id = '00000000-0000-0000-0000-000000000001'
from locked l
where t.id = l.id
returning t.company_id, t.id;
rollback;
