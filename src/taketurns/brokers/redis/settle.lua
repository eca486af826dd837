#!lua flags=allow-oom
-- Report how claimed jobs ended: completed, failed, cancelled, or scheduled again after a delay: for another attempt
-- (retry), or for this attempt at a later time, with no penalty (deferred).
-- Safe because each report names its claim's token: a job that was rescued, cancelled or claimed again since then is
-- not touched, and is missing from the answer.

local moment = moment_of(ARGV[1])
local lifetimes = { completed = tonumber(ARGV[2]), failed = tonumber(ARGV[3]), cancelled = tonumber(ARGV[3]) }

local settled, companies = {}, {}
for first = 4, #ARGV, 6 do
  local job, token, outcome = ARGV[first], ARGV[first + 1], ARGV[first + 2]
  local result, error, delay = optional(ARGV[first + 3]), optional(ARGV[first + 4]), tonumber(ARGV[first + 5])
  local stands, worker = unpack(redis.call('HMGET', key('job', job), 'claim_token', 'worker_id'))
  if stands == token then
    let_go(job, worker)
    if outcome == 'retry' or outcome == 'deferred' then
      redis.call('HINCRBY', key('job', job), 'retry_count', outcome == 'retry' and 1 or 0)
      redis.call('HDEL', key('job', job), 'started_at')
      stand_on_schedule(job, moment + delay)
      remember(job, outcome == 'retry' and 'retried' or outcome, moment, error, moment + delay)
    else
      if result then
        redis.call('HSET', key('job', job), 'result', result)
      end
      finish(job, outcome, moment, lifetimes[outcome], error)
    end
    companies[company_of(job)] = true
    table.insert(settled, id_of(job))
  end
end
for company in pairs(companies) do
  weigh(company)
end
return settled
