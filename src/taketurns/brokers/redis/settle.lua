#!lua flags=allow-oom
-- Report how claimed jobs ended: completed, failed, cancelled, or scheduled again after a delay: for another attempt
-- (retry), or for this attempt at a later time, with no penalty (deferred).
-- Safe because each report names its claim's token: a job that was rescued, cancelled or claimed again since then is
-- not touched. Answers the numbers of such reports, which count for nothing.
--
-- Reports are JSON texts: a script's arguments cost the caller more, one by one, than all that is in them. Completed jobs
-- are told by company and token, [company, token, ids, results], for nearly all reports are such; others by themselves,
-- [company, id, token, outcome, result, error, delay]. They are numbered through, and what is written is written once.

local moment = moment_of(ARGV[1])
local lifetimes = { completed = tonumber(ARGV[2]), failed = tonumber(ARGV[3]), cancelled = tonumber(ARGV[3]) }
local completed, others = cjson.decode(ARGV[4]), cjson.decode(ARGV[5])

local names = {}
for _, group in ipairs(completed) do
  local company = group[1] .. ':'
  for _, id in ipairs(group[3]) do
    names[#names + 1] = company .. id
  end
end
for _, report in ipairs(others) do
  names[#names + 1] = report[1] .. ':' .. report[2]
end
local claims, known, has_report, ignored = read('HMGET', key('processing'), names), {}, {}, {}

-- The claim that a report is about, if it stands. Jobs that were claimed together share one.
local function claim_of(number, token)
  local told = claims[number]
  local claim = told and (known[told] or read_claim(told))
  if claim and claim.token == token and not has_report[names[number]] then
    known[told] = claim
    has_report[names[number]] = true
    return claim
  end
  ignored[#ignored + 1] = number
end

local gone, gone_of, ended, number = {}, {}, {}, 0
for _, group in ipairs(completed) do
  local company, token, ids, results = unpack(group)
  local held, ends = {}, {}
  for place, id in ipairs(ids) do
    number = number + 1
    local claim = claim_of(number, token)
    if claim then
      local name, result = names[number], results ~= cjson.null and results[place] or cjson.null
      claim.completed = claim.completed or ended_as('completed', moment, lifetimes.completed, claim.started_at)
      gone[#gone + 1] = name
      gone_of[claim.worker] = gone_of[claim.worker] or {}
      table.insert(gone_of[claim.worker], name)
      held[#held + 1] = id
      ends[#ends + 1] = id
      ends[#ends + 1] = result ~= cjson.null and claim.completed .. '\n' .. result or claim.completed
      ended[#ended + 1] = whole(moment)
      ended[#ended + 1] = name
      freeing[company] = true
      tell_change(name)
    end
  end
  write('SREM', key('held', company), held)
  write('HSET', key('ends', company), ends)
end
write('HDEL', key('processing'), gone)
write('ZADD', key('ended', 'completed'), ended)
for worker, jobs in pairs(gone_of) do
  write('SREM', key('hands', worker), jobs)
end

local function settle(report, claim)
  local name, outcome, result, error, delay = names[number], unpack(report, 4)
  result, error = result ~= cjson.null and result or nil, error ~= cjson.null and error or nil
  local job = job_of(name)
  if not job then  -- what is lost ends with its worker
    ignored[#ignored + 1] = number
    return
  end
  if outcome == 'retry' or outcome == 'deferred' then
    local kind = outcome == 'retry' and 'retried' or outcome
    remember(name, job, kind, moment, claim.started_at, error, whole(moment + delay))
    job.retries = job.retries + (outcome == 'retry' and 1 or 0)
    stand_on_schedule(name, job, moment + delay)
    put_job(name, job)
  else
    finish(name, job, outcome, moment, lifetimes[outcome], claim.started_at, error, result)
  end
  let_go(name, claim.worker)
end

for _, report in ipairs(others) do
  number = number + 1
  local claim = claim_of(number, report[3])
  if claim then
    settle(report, claim)
  end
end
free_hands()
return ignored
