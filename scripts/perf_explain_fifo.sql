-- The plain claim: the oldest eligible rows, whoever has them. On the plain table with USUAL_FIFO_INDEX of perf_seed.py,
-- which serves it.
--   psql "$URL" -f scripts/perf_explain_fifo.sql
begin;
explain (analyze, buffers, settings)
with locked as (
    select t.id
    from usual.tasks t
    where t.status = 'pending' and t.run_after <= now()
    order by t.created_at, t.id
    limit 10
    for update skip locked
)
update usual.tasks t
set status = 'processing', started_at = now(), worker_id = '00000000-0000-0000-0000-000000000001'
from locked l
where t.id = l.id
returning t.company_id, t.id;
rollback;
