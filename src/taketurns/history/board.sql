-- How it stands with every company: what each has waiting and running, how long the longest of it waits, and its share
-- of the hands that those who wait have or may have; of one that does not, what it would be if it did. Those who wait
-- longest come first, then those who run most, then by slug.
-- Costs the same whatever the backlog and the history: up to `few` tasks are counted of up to `companies` companies, and
-- `many` more in all of those that have more, up to `most` of each; companies themselves are read whole.
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
    select w.company_id, t.tasks, t.oldest
    from waiting w
    cross join lateral (
        select count(*) as tasks, min(x.run_after) as oldest
        from (
            select p.run_after from pending_tasks p where p.company_id = w.company_id
            order by p.company_id, p.task_id limit %(few)s + 1
        ) x
    ) t
), backlog as (
    select c.company_id, c.tasks, true as is_exact, c.oldest from counted c where c.tasks <= %(few)s
    union all
    select c.company_id, t.tasks, t.tasks < c.most, c.oldest
    from (
        select c.*, least(%(most)s, greatest(%(many)s / count(*) over (), %(few)s)) as most
        from counted c where c.tasks > %(few)s
    ) c
    cross join lateral (
        select count(*) as tasks
        from (
            select from pending_tasks p where p.company_id = c.company_id
            order by p.company_id, p.task_id limit c.most
        ) x
    ) t
), running as materialized (
    select p.company_id, count(*) as hands from processing_tasks p where p.queue <> '!inline' group by p.company_id
), sharing as materialized (
    select c.id as company_id, c.weight
    from companies c join backlog b on b.company_id = c.id
    where not c.paused and exists (select from lines l where l.company_id = c.id and l.rests_place is null)
), fleet as (
    select (select coalesce(sum(w.concurrency), 0) from workers w) - (
            select coalesce(sum(r.hands), 0) from running r where r.company_id not in (select s.company_id from sharing s)
        ) as hands,
        (select coalesce(sum(s.weight), 0) from sharing s) as weights
)
select c.id, c.slug, c.name, c.weight, c.paused, c.paused_until, c.max_in_flight, c.max_queued,
    coalesce(b.tasks, 0), coalesce(b.is_exact, true), extract(epoch from clock_timestamp() - b.oldest)::float8, coalesce(r.hands, 0),
    case when (b.tasks is not null or r.hands is not null) and not c.paused
        then greatest(f.hands + case when s.company_id is null then coalesce(r.hands, 0) else 0 end, 0) * c.weight
            / (f.weights + case when s.company_id is null then c.weight else 0 end)::float8 end
from companies c
cross join fleet f
left join sharing s on s.company_id = c.id
left join backlog b on b.company_id = c.id
left join running r on r.company_id = c.id
where %(like)s = '' or c.slug like %(like)s or lower(c.name) like %(like)s
order by b.oldest nulls last, r.hands desc nulls last, c.slug
limit %(limit)s offset %(skip)s
