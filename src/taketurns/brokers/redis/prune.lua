#!lua flags=allow-oom
-- Forget ended jobs that were kept long enough, at most `most` of them, and expired keys; and clear every index of
-- those whose time was up by themselves.

local moment, most = moment_of(ARGV[1]), tonumber(ARGV[2])
local kept = { completed = ARGV[3], failed = ARGV[4], cancelled = ARGV[5] }
local lifetimes = { completed = ARGV[6], failed = ARGV[7], cancelled = ARGV[7] }

local function ended_before(status, milliseconds, limit)
  local latest = '(' .. whole(moment - tonumber(milliseconds) * 1000)
  return redis.call('ZRANGEBYSCORE', key('ended', status), '-inf', latest, 'LIMIT', 0, limit)
end

local pruned = 0
for status in pairs(kept) do
  for _, job in ipairs(ended_before(status, kept[status], most - pruned)) do
    forget(job)
    redis.call('ZREM', key('ended', status), job)
    pruned = pruned + 1
  end
  for _, job in ipairs(ended_before(status, lifetimes[status], most)) do
    if redis.call('EXISTS', key('job', job)) == 0 then
      forget(job)
      redis.call('ZREM', key('ended', status), job)
    end
  end
end

local keys = redis.call('ZRANGEBYSCORE', key('keys'), '-inf', whole(moment), 'LIMIT', 0, most)
for _, name in ipairs(keys) do
  redis.call('DEL', key('key', name))
  redis.call('ZREM', key('keys'), name)
end

for _, queue in ipairs(redis.call('HKEYS', key('rotations'))) do
  if redis.call('EXISTS', key('turns', queue), key('idle', queue)) == 0 then
    redis.call('HDEL', key('rotations'), queue)
  end
end
return { pruned, #keys }
