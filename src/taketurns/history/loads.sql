-- Which companies have the most tasks waiting and the most in workers' hands: `top` of each by slug, the others together.
-- Costs the same whatever the backlog and the number of companies: up to `few` tasks are counted of up to `companies`
-- companies, and `many` more in all of those that have more, up to `most` of each.
-- Lives on pending_tasks_company_id_task_id_idx, walked from company to company; what workers hold is read whole.
with recursive waiting as (
    (select p.company_id, 1 as number from pending_tasks p order by p.company_id, p.task_id limit 1)
    union all
    select n.company_id, w.number + 1
    from waiting w
    cross join lateral (
        select p.company_id from pending_tasks p where p.company_id > w.company_id
        order by p.company_id, p.task_id limit 1
    ) n
    where w.number < %(companies)s
), counted as materialized (
    select w.company_id, t.tasks
    from waiting w
    cross join lateral (
        select count(*) as tasks
        from (
            select from pending_tasks p where p.company_id = w.company_id
            order by p.company_id, p.task_id limit %(few)s + 1
        ) x
    ) t
), load as (
    select 'waiting' as kind, c.company_id, c.tasks from counted c where c.tasks <= %(few)s
    union all
    select 'waiting', c.company_id, t.tasks
    from (select c.*, %(many)s / count(*) over () as share from counted c where c.tasks > %(few)s) c
    cross join lateral (
        select count(*) as tasks
        from (
            select from pending_tasks p where p.company_id = c.company_id
            order by p.company_id, p.task_id limit least(%(most)s, greatest(c.share, %(few)s))
        ) x
    ) t
    union all
    select 'in flight', p.company_id, count(*) from processing_tasks p where p.queue <> '!inline' group by p.company_id
), ranked as (
    select l.*, row_number() over (partition by l.kind order by l.tasks desc, l.company_id) as number from load l
)
select r.kind, c.slug, sum(r.tasks)::bigint
from ranked r left join companies c on c.id = r.company_id and r.number <= %(top)s
group by r.kind, c.slug
