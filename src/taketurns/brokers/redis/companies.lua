#!lua flags=no-writes
-- What was told of companies, in the order in which they are named.

local told = {}
for _, company in ipairs(ARGV) do
  table.insert(told, redis.call('HMGET', key('company', company), 'slug', 'weight', 'max_in_flight', 'paused',
    'updated_at', 'rate_tasks', 'rate_seconds', 'rate_burst', 'max_queued'))
end
return told
