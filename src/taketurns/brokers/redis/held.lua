#!lua flags=no-writes
-- What a worker holds, each told as far as it takes to release it or to report on it.

local held = {}
for _, job in ipairs(redis.call('SMEMBERS', key('hands', ARGV[1]))) do
  local told = redis.call('HMGET', key('job', job), 'type', 'queue', 'priority', 'retry_count', 'rescue_count',
    'event_number', 'started_at', 'claim_token')
  if told[1] and told[8] then  -- one that is lost waits for the rescue
    table.insert(held, { company_of(job), id_of(job), told })
  end
end
return held
