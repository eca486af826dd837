#!lua flags=allow-oom
-- Write down a new lease and the types that its holder publishes, and remove the lease that it had before. A lease
-- that nobody looks at any more is forgotten after `lifetime` milliseconds. What was wanted of the former one still is.

local worker, former, lifetime = ARGV[1], optional(ARGV[2]), ARGV[3]
local now = whole(moment_of(''))
local wanted = former and redis.call('HGET', key('lease', former), 'wanted')
if former then
  redis.call('DEL', key('lease', former))
end
redis.call('SADD', key('workers'), worker)
redis.call('HSET', key('lease', worker), 'beat', 0, 'started_at', now, 'beat_at', now, unpack(ARGV, 4))
if wanted then
  redis.call('HSET', key('lease', worker), 'wanted', wanted)
end
redis.call('PEXPIRE', key('lease', worker), lifetime)
for _, type in ipairs(cjson.decode(redis.call('HGET', key('lease', worker), 'types'))) do
  redis.call('SADD', key('types'), type)
end
return { now, redis.call('SMEMBERS', key('types')), redis.call('HGET', key('lease', worker), 'wanted') }
