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

local jobs, suspects = {}, 0
for _, name in ipairs(redis.call('SMEMBERS', key('hands', worker))) do
  local job = job_of(name)
  local claim = redis.call('HGET', key('processing'), name)
  table.insert(jobs, { name = name, job = job, started_at = claim and read_claim(claim).started_at })
  suspects = suspects + (job and job.rescues >= 2 and 1 or 0)
end

local rescued = {}
for _, held in ipairs(jobs) do
  local name, job, started_at = held.name, held.job, held.started_at
  local why = what_is_lost(job and job.told)
  let_go(name, worker)
  if why then
    bury(name, why, moment, lifetime, {})
  else
    local fails = job.rescues >= max_rescues and suspects == (job.rescues >= 2 and 1 or 0)
    if fails then
      finish(name, job, 'failed', moment, lifetime, started_at,
        'worker lost: the worker was lost at least ' .. (max_rescues + 1) .. ' times while it ran this task')
    else
      remember(name, job, 'rescued', moment, started_at, 'the worker was lost')
      job.rescues = math.min(job.rescues + 1, max_rescues)
      stand_in_line(name, job)
      put_job(name, job)
    end
    table.insert(rescued, { company_of(name), id_of(name), job.type, job.queue, fails and 1 or 0 })
  end
end
join_lines()
free_hands()
return { rescued, lost }
