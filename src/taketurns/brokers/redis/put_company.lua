#!lua flags=allow-oom
-- Write down what is known of a company. A company that is paused leaves the rotations of its queues, and comes back
-- to where it was; another weight counts from now on.
-- Who tells may have read it a while ago: what is older than what was told already changes nothing, unless it is to
-- stand `instead_of` just that.

local company, slug, weight, most, paused, updated_at = unpack(ARGV)
local instead_of = optional(ARGV[7])
local known = redis.call('HMGET', key('company', company), 'slug', 'weight', 'max_in_flight', 'paused', 'updated_at')
if known[5] and tonumber(known[5]) > tonumber(updated_at) and known[5] ~= instead_of then
  return
end
if known[1] == slug and known[2] == weight and known[3] == most and known[4] == paused and known[5] == updated_at then
  return
end
if known[1] and known[1] ~= slug and redis.call('HGET', key('slugs'), known[1]) == company then
  redis.call('HDEL', key('slugs'), known[1])
end
redis.call('SADD', key('companies'), company)
redis.call('HSET', key('slugs'), slug, company)
redis.call('HSET', key('company', company), 'slug', slug, 'weight', weight, 'max_in_flight', most, 'paused', paused,
  'updated_at', updated_at)

for _, queue in ipairs(redis.call('SMEMBERS', key('lines', company))) do
  if paused == '0' then
    join(company, queue)
  else
    leave(company, queue)
    redis.call('SREM', key('waiting'), company)
  end
end
weigh(company)
