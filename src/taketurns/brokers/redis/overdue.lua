#!lua flags=no-writes
-- Workers whose lease was not beaten for so many microseconds, or that hold jobs and have no lease.

local since = moment_of(ARGV[1]) - tonumber(ARGV[2])

local overdue = {}
for _, worker in ipairs(redis.call('SMEMBERS', key('workers'))) do
  local beat_at = redis.call('HGET', key('lease', worker), 'beat_at')
  if beat_at and tonumber(beat_at) < since or not beat_at and redis.call('EXISTS', key('hands', worker)) == 1 then
    table.insert(overdue, worker)
  end
end
return overdue
