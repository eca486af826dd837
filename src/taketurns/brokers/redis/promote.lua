#!lua flags=allow-oom
-- Make scheduled jobs that are due pending, at most `most` of them, and tell when the next one is due.

local moment, most, lifetime = moment_of(ARGV[1]), ARGV[2], tonumber(ARGV[3])

local promoted = 0
for _, name in ipairs(redis.call('ZRANGEBYSCORE', key('scheduled'), '-inf', whole(moment), 'LIMIT', 0, most)) do
  local job = job_of(name)
  leave_schedule(name)
  local why = what_is_lost(job and job.told)
  if why then
    bury(name, why, moment, lifetime, {})
  else
    stand_in_line(name, job)
    promoted = promoted + 1
    tell_change(name)
  end
end

local names = {}
for queue in pairs(join_lines()) do
  table.insert(names, queue)
end
local due = redis.call('ZRANGEBYSCORE', key('scheduled'), '(' .. whole(moment), '+inf', 'WITHSCORES', 'LIMIT', 0, 1)
return { promoted, names, due[2] and whole(tonumber(due[2])) or false, lost }
