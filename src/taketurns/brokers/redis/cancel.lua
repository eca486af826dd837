#!lua flags=allow-oom
-- End an unfinished job as cancelled, wherever it stands. Answers what was done: `cancelled`, the terminal status that
-- the job has had already, or nothing when the company has no such job. A running handler is told by its worker, which
-- no longer finds its claim.

local moment, company, lifetime = moment_of(ARGV[1]), company_named(ARGV[2]), tonumber(ARGV[4])
if not company then
  return false
end
local job = company .. ':' .. ARGV[3]
local status, worker = unpack(redis.call('HMGET', key('job', job), 'status', 'worker_id'))
if status == 'scheduled' then
  leave_schedule(job)
elseif status == 'pending' then
  step_out_of_line(job)
elseif status == 'processing' then
  let_go(job, worker)
else
  if status == 'cancelled' then
    vouch()
  end
  return status
end
finish(job, 'cancelled', moment, lifetime)
weigh(company)
return 'cancelled'
