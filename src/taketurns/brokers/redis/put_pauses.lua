#!lua flags=allow-oom
-- Write down all pauses of a company's queues and types, or of everybody's, in place of those that were told before.
-- Who tells has looked at the revision before it read the database: when others have told something since, nothing is
-- changed, for what they read may be newer. Answers the new revision, or nothing.

local owner, moment = ARGV[1], moment_of('')
if (redis.call('GET', key('pause_revision')) or '0') ~= ARGV[2] then
  return false
end

local had, gone = redis.call('HGETALL', key('pauses', owner)), {}
for place = 1, #had, 2 do
  gone[had[place]] = true
  redis.call('ZREM', key('pause_ends'), owner .. '!' .. had[place])
end
redis.call('DEL', key('pauses', owner))
redis.call('SREM', key('pausing'), owner)
for place = 3, #ARGV, 2 do
  local pause, pause_until = ARGV[place], ARGV[place + 1]
  if is_in_force(pause_until, moment) then
    gone[pause] = nil
    redis.call('HSET', key('pauses', owner), pause, pause_until)
    redis.call('SADD', key('pausing'), owner)
    if pause_until ~= '' then
      redis.call('ZADD', key('pause_ends'), pause_until, owner .. '!' .. pause)
    end
  end
end

if owner ~= ALL then
  stand_or_rest(owner, moment)
  weigh(owner)
end
local queues = {}
for pause in pairs(gone) do
  local queue = string.match(pause, '^([^!]+)!$')
  if queue then
    queues[queue] = true
  end
end
tell_work(queues)
return redis.call('INCR', key('pause_revision'))
