#!lua flags=allow-oom
-- Make scheduled jobs that are due pending, at most `most` of them, and tell when the next one is due.

local moment, most, lifetime = moment_of(ARGV[1]), ARGV[2], tonumber(ARGV[3])

local queues, companies, promoted = {}, {}, 0
for _, job in ipairs(redis.call('ZRANGEBYSCORE', key('scheduled'), '-inf', whole(moment), 'LIMIT', 0, most)) do
  leave_schedule(job)
  local why = what_is_lost(job)
  if why then
    bury(job, why, moment, lifetime, {})
  else
    queues[stand_in_line(job)] = true
    companies[company_of(job)] = true
    promoted = promoted + 1
    tell_change(job)
  end
end
for company in pairs(companies) do
  weigh(company)
end
tell_work(queues)

local names = {}
for queue in pairs(queues) do
  table.insert(names, queue)
end
local due = redis.call('ZRANGEBYSCORE', key('scheduled'), '(' .. whole(moment), '+inf', 'WITHSCORES', 'LIMIT', 0, 1)
return { promoted, names, due[2] and whole(tonumber(due[2])) or false, lost }
