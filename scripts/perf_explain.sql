-- Our claim of ten turns, with the plans of the statements inside it. On a database that perf_seed.py has filled:
--   psql "$URL" -f scripts/perf_explain.sql
load 'auto_explain';
set auto_explain.log_min_duration = 0;
set auto_explain.log_analyze = on;
set auto_explain.log_buffers = on;
set auto_explain.log_nested_statements = on;
set auto_explain.log_level = notice;
set client_min_messages = notice;
begin;
explain (analyze, buffers, settings)
select company_id, task_id
from taketurns.claim('00000000-0000-0000-0000-000000000001', '{default}', 10, gen_random_uuid());
rollback;
