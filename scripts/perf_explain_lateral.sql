-- The second usual claim: the oldest few eligible rows of each company that has any, ranked among each other. It has
-- the index that serves it, (company_id, created_at), and no JIT.
--   psql "$URL" -f scripts/perf_explain_lateral.sql
set jit = off;
begin;
explain (analyze, buffers, settings)
with eligible as (
    select distinct t.company_id from usual.tasks t where t.status = 'pending' and t.run_after <= now()
), ranked as (
    select o.id, o.created_at, row_number() over (partition by e.company_id order by o.created_at, o.id) as rank
    from eligible e
    cross join lateral (
        select t.id, t.created_at
        from usual.tasks t
        where t.company_id = e.company_id and t.status = 'pending' and t.run_after <= now()
        order by t.created_at
        limit 10
    ) o
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
