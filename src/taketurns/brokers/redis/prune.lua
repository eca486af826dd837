#!lua flags=allow-oom
-- Forget ended jobs that were kept long enough, or whose time is up, at most `most` of them, and expired keys.

local moment, most = moment_of(ARGV[1]), tonumber(ARGV[2])
local kept = { completed = ARGV[3], failed = ARGV[4], cancelled = ARGV[5] }
local lifetimes = { completed = ARGV[6], failed = ARGV[7], cancelled = ARGV[7] }

local function ended_before(status, milliseconds, limit)
  local latest = '(' .. whole(moment - tonumber(milliseconds) * 1000)
  return redis.call('ZRANGEBYSCORE', key('ended', status), '-inf', latest, 'LIMIT', 0, limit)
end

local pruned = {}
for status in pairs(kept) do
  local names = ended_before(status, kept[status], most - #pruned)
  write('ZREM', key('ended', status), names)
  for _, name in ipairs(ended_before(status, lifetimes[status], most - #pruned - #names)) do
    local ended = end_of(name)
    if not ended or tonumber(string.match(ended, '^%["%a+",%w+,%d+,(%d+),')) <= now() then
      soon('ZREM', key('ended', status), name)
      table.insert(names, name)
    end
  end
  for _, name in ipairs(names) do
    table.insert(pruned, name)
  end
end
forget(pruned)

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
return { #pruned, #keys }
