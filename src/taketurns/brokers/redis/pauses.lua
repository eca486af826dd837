#!lua flags=no-writes
-- The pauses that were told and are not over, by their owner, and their revision.

local told = {}
for _, owner in ipairs(redis.call('SMEMBERS', key('pausing'))) do
  table.insert(told, { owner, redis.call('HGETALL', key('pauses', owner)) })
end
return { redis.call('GET', key('pause_revision')) or '0', told }
