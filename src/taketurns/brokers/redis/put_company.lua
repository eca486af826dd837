#!lua flags=allow-oom
-- Write down what is known of a company. A company that is paused leaves the rotations of its queues, and comes back
-- to where it was; another weight or limit counts from now on.
-- Who tells may have read it a while ago: what is older than what was told already changes nothing, unless it is to
-- stand `instead_of` just that. Of one that is being deleted nothing is written down any more.

local FIELDS =
  { 'slug', 'weight', 'max_in_flight', 'paused', 'updated_at', 'rate_tasks', 'rate_seconds', 'rate_burst',
    'max_queued' }

local instead_of, company, slug, updated_at = optional(ARGV[1]), ARGV[2], ARGV[3], ARGV[7]
local known, told, is_news = redis.call('HMGET', key('company', company), unpack(FIELDS)), {}, false
for place, field in ipairs(FIELDS) do
  is_news = is_news or known[place] ~= ARGV[place + 2]
  table.insert(told, field)
  table.insert(told, ARGV[place + 2])
end
if not is_news or known[5] and tonumber(known[5]) > tonumber(updated_at) and known[5] ~= instead_of then
  return
end
if is_closed(company) then
  return
end
if known[1] and known[1] ~= slug and redis.call('HGET', key('slugs'), known[1]) == company then
  redis.call('HDEL', key('slugs'), known[1])
end
redis.call('SADD', key('companies'), company)
redis.call('HSET', key('slugs'), slug, company)
redis.call('HSET', key('company', company), unpack(told))

local queues = {}
for _, queue in ipairs(redis.call('SMEMBERS', key('lines', company))) do
  if may_be_served(company) then
    join(company, queue)
    queues[queue] = true
  else
    leave(company, queue)
    redis.call('SREM', key('waiting'), company)
  end
end
stand_or_rest(company, moment_of(''))
weigh(company)
tell_work(queues)
