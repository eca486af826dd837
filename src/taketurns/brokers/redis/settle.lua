#!lua flags=allow-oom
-- Report how claimed jobs ended: completed, failed, cancelled, or scheduled again after a delay: for another attempt
-- (retry), or for this attempt at a later time, with no penalty (deferred).
-- Safe because each report names its claim's token: a job that was rescued, cancelled or claimed again since then is
-- not touched, and is missing from the answer, which are the numbers of the reports that counted.
--
-- Reports are one JSON text: a script's arguments cost the caller more, one by one, than all that is in them.

local moment = moment_of(ARGV[1])
local lifetimes = { completed = tonumber(ARGV[2]), failed = tonumber(ARGV[3]), cancelled = tonumber(ARGV[3]) }

local function given(value)
  if value ~= cjson.null then
    return value
  end
end

local settled, companies = {}, {}
for number, report in ipairs(cjson.decode(ARGV[4])) do
  local company, id, token, outcome, result, error, delay = unpack(report)
  local job = company .. ':' .. id
  result, error = given(result), given(error)
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
    companies[company] = true
    table.insert(settled, number)
  end
end
for company in pairs(companies) do
  weigh(company)
end
return settled
