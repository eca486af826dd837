#!lua flags=allow-oom
-- Take back the jobs of a worker that is gone: pending again, or failed once they were rescued `max_rescues` times.
-- One of them may be what kills workers. So from the second loss on they come back apart from each other, after a
-- random time that grows, and those that are innocent end before they meet the culprit again.
-- Safe because the worker's lease must still stand at the beat that the rescuer watched (none: it must be missing).
-- Removing the lease tells a worker that comes back that its work is not its own.

local moment = moment_of(ARGV[1])
local worker, watched = ARGV[2], optional(ARGV[3])
local max_rescues, lifetime = tonumber(ARGV[4]), tonumber(ARGV[5])
math.randomseed(tonumber(ARGV[6]))

if (redis.call('HGET', key('lease', worker), 'beat') or nil) ~= watched then
  return { {}, {} }
end
redis.call('DEL', key('lease', worker))
redis.call('SREM', key('workers'), worker)

local rescued, queues, companies = {}, {}, {}
for _, job in ipairs(redis.call('SMEMBERS', key('hands', worker))) do
  local type, queue, rescues = unpack(redis.call('HMGET', key('job', job), 'type', 'queue', 'rescue_count'))
  local why = what_is_lost(job)
  rescues = tonumber(rescues or 0)
  let_go(job, worker)
  if why then
    bury(job, why, moment, lifetime, {})
  elseif rescues >= max_rescues then
    local count = max_rescues + 1
    finish(job, 'failed', moment, lifetime,
      'worker lost: the worker was lost ' .. count .. ' times while it ran this task')
  else
    redis.call('HINCRBY', key('job', job), 'rescue_count', 1)
    redis.call('HDEL', key('job', job), 'started_at')
    if rescues == 0 then
      remember(job, 'rescued', moment, 'the worker was lost')
      queues[stand_in_line(job)] = true
    else
      local run_after = moment + math.floor(math.random() * 5000000 * 2 ^ math.min(rescues, 10))
      remember(job, 'rescued', moment, 'the worker was lost', run_after)
      stand_on_schedule(job, run_after)
    end
  end
  companies[company_of(job)] = true
  if not why then
    table.insert(rescued, { company_of(job), id_of(job), type, queue, rescues >= max_rescues and 1 or 0 })
  end
end
for company in pairs(companies) do
  weigh(company)
end
tell_work(queues)
return { rescued, lost }
