#!lua flags=allow-oom
-- Report how claimed jobs ended: completed, failed, cancelled, or scheduled again after a delay: for another attempt
-- (retry), or for this attempt at a later time, with no penalty (deferred).
-- Safe because each report names its claim's token: a job that was rescued, cancelled or claimed again since then is
-- not touched, and is missing from the answer, which are the numbers of the reports that counted.
--
-- Reports are one JSON text: a script's arguments cost the caller more, one by one, than all that is in them. What is
-- written is written once for all jobs that it is written of.

local moment = moment_of(ARGV[1])
local lifetimes = { completed = tonumber(ARGV[2]), failed = tonumber(ARGV[3]), cancelled = tonumber(ARGV[3]) }

local function given(value)
  if value ~= cjson.null then
    return value
  end
end

local reports, names = cjson.decode(ARGV[4]), {}
for number, report in ipairs(reports) do
  names[number] = report[1] .. ':' .. report[2]
end
local claims, settled = read('HMGET', key('processing'), names), {}

local function settle(number)
  local _, _, _, outcome, result, error, delay = unpack(reports[number])
  local name, claim, job = names[number], read_claim(claims[number]), nil
  error = given(error)
  if outcome ~= 'completed' then
    job = job_of(name)
    if not job then
      return  -- what is lost ends with its worker
    end
  end
  if outcome == 'retry' or outcome == 'deferred' then
    local kind = outcome == 'retry' and 'retried' or outcome
    remember(name, job, kind, moment, claim.started_at, error, whole(moment + delay))
    job.retries = job.retries + (outcome == 'retry' and 1 or 0)
    stand_on_schedule(name, job, moment + delay)
    put_job(name, job)
  else
    finish(name, job, outcome, moment, lifetimes[outcome], claim.started_at, error, given(result))
  end
  let_go(name, claim.worker)
  table.insert(settled, number)
end

local has_report = {}
for number, report in ipairs(reports) do
  local claim = claims[number]
  if claim and not has_report[names[number]] and string.sub(claim, 1, 36) == report[3] then
    has_report[names[number]] = true
    settle(number)
  end
end
free_hands()
return settled
