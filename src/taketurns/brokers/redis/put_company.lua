#!lua flags=allow-oom
-- Write down what is known of a company. A company that is paused leaves the rotations of its queues, and comes back
-- to where it was; another weight counts from now on.

local company, slug, weight, most, paused = unpack(ARGV)
local known = redis.call('HMGET', key('company', company), 'slug', 'weight', 'max_in_flight', 'paused')
if known[1] == slug and known[2] == weight and known[3] == most and known[4] == paused then
  return
end
if known[1] and known[1] ~= slug and redis.call('HGET', key('slugs'), known[1]) == company then
  redis.call('HDEL', key('slugs'), known[1])
end
redis.call('SADD', key('companies'), company)
redis.call('HSET', key('slugs'), slug, company)
redis.call('HSET', key('company', company), 'slug', slug, 'weight', weight, 'max_in_flight', most, 'paused', paused)

for _, queue in ipairs(redis.call('SMEMBERS', key('lines', company))) do
  if paused == '0' then
    join(company, queue)
  else
    leave(company, queue)
    redis.call('SREM', key('waiting'), company)
  end
end
weigh(company)
