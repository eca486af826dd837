#!lua flags=allow-oom
-- Give jobs that were set aside back to their lines once a living worker knows their type, and it is not paused, at most
-- `most` of them; answers how many.

local moment, left, lifetime = moment_of(ARGV[3]), tonumber(ARGV[1]), tonumber(ARGV[2])
local looks_for_pauses = some_are_paused()

local known = {}
for _, worker in ipairs(redis.call('SMEMBERS', key('workers'))) do
  for _, type in ipairs(cjson.decode(redis.call('HGET', key('lease', worker), 'types') or '[]')) do
    known[type] = true
  end
end

for _, line in ipairs(redis.call('SMEMBERS', key('parked'))) do
  local company, aside = company_of(line), id_of(line)
  local type, queue = string.match(aside, '^!([^!]*)!(.*)$')
  if left > 0 and known[type] and not (looks_for_pauses and type_is_paused(company, queue, type, moment)) then
    for _, member in ipairs(redis.call('ZRANGE', key('line', line), 0, left - 1)) do
      local name = company .. ':' .. id_in_line(member)
      redis.call('ZREM', key('line', line), member)
      local job = job_of(name)
      local why = what_is_lost(job and job.told)
      if why then
        bury(name, why, moment, lifetime,
          { type = type_in_line(member), queue = queue, run_after = run_after_in_line(member) })
      else
        stand_in_line(name, job)
      end
      left = left - 1
    end
  end
  if redis.call('EXISTS', key('line', line)) == 0 then
    redis.call('SREM', key('parked'), line)
    redis.call('SREM', key('asides', company), aside)
  end
end
join_lines()
return { tonumber(ARGV[1]) - left, lost }
