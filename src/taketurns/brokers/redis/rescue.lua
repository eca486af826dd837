#!lua flags=allow-oom
-- Take back the jobs of a worker that is gone: pending again, or failed once they were rescued `max_rescues` times,
-- unless another was lost with them that may be what kills workers. The rule is told in taketurns/engine/rescue.py.
-- Safe because the worker's lease must still stand at the beat that the rescuer watched (none: it must be missing).
-- Removing the lease tells a worker that comes back that its work is not its own.

local moment = moment_of(ARGV[1])
local worker, watched = ARGV[2], optional(ARGV[3])
local max_rescues, lifetime = tonumber(ARGV[4]), tonumber(ARGV[5])

if (redis.call('HGET', key('lease', worker), 'beat') or nil) ~= watched then
  return { {}, {} }
end
redis.call('DEL', key('lease', worker))
redis.call('SREM', key('workers'), worker)

local function rescues_of(job)
  return tonumber(redis.call('HGET', key('job', job), 'rescue_count') or 0)
end

local jobs = redis.call('SMEMBERS', key('hands', worker))
local suspects = 0
for _, job in ipairs(jobs) do
  suspects = suspects + (rescues_of(job) >= 2 and 1 or 0)
end

local rescued, queues, companies = {}, {}, {}
for _, job in ipairs(jobs) do
  local type, queue = unpack(redis.call('HMGET', key('job', job), 'type', 'queue'))
  local rescues = rescues_of(job)
  local fails = rescues >= max_rescues and suspects == (rescues >= 2 and 1 or 0)
  local why = what_is_lost(job)
  let_go(job, worker)
  if why then
    bury(job, why, moment, lifetime, {})
  elseif fails then
    local count = max_rescues + 1
    finish(job, 'failed', moment, lifetime,
      'worker lost: the worker was lost at least ' .. count .. ' times while it ran this task')
  else
    redis.call('HSET', key('job', job), 'rescue_count', math.min(rescues + 1, max_rescues))
    redis.call('HDEL', key('job', job), 'started_at')
    remember(job, 'rescued', moment, 'the worker was lost')
    queues[stand_in_line(job)] = true
  end
  companies[company_of(job)] = true
  if not why then
    table.insert(rescued, { company_of(job), id_of(job), type, queue, fails and 1 or 0 })
  end
end
for company in pairs(companies) do
  weigh(company)
end
tell_work(queues)
return { rescued, lost }
