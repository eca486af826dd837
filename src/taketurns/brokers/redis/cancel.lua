#!lua flags=allow-oom
-- End an unfinished job as cancelled, wherever it stands. Answers what was done: `cancelled`, the terminal status that
-- the job has had already, or nothing when the company has no such job. A running handler is told by its worker, which
-- no longer finds its claim.

local moment, company, lifetime = moment_of(ARGV[1]), company_named(ARGV[2]), tonumber(ARGV[4])
if not company then
  return false
end
local name = company .. ':' .. ARGV[3]
local status, job, claim = look_up(name)
if status == 'scheduled' then
  leave_schedule(name)
elseif status == 'pending' then
  step_out_of_line(name, job)
elseif status == 'processing' then
  let_go(name, claim.worker)
else
  if status == 'cancelled' then
    vouch()
  end
  return status or false
end
finish(name, job, 'cancelled', moment, lifetime, claim and claim.started_at)
free_hands()
weigh(company)
return 'cancelled'
