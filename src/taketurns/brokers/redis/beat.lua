#!lua flags=allow-oom
-- Renew a lease and say what its holder does; answers what is wanted of it, and nothing when the lease is gone, for
-- others have taken the work.

local worker, lifetime, since_claim, state = ARGV[1], ARGV[2], optional(ARGV[3]), ARGV[4]
if redis.call('EXISTS', key('lease', worker)) == 0 then
  return false
end
local now = moment_of('')
redis.call('HINCRBY', key('lease', worker), 'beat', 1)
redis.call('HSET', key('lease', worker), 'beat_at', whole(now), 'state', state)
if since_claim then
  redis.call('HSET', key('lease', worker), 'last_claim_at', whole(now - tonumber(since_claim)))
end
redis.call('PEXPIRE', key('lease', worker), lifetime)
return { whole(now), redis.call('SMEMBERS', key('types')), redis.call('HGET', key('lease', worker), 'wanted') }
