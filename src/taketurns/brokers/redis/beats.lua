#!lua flags=allow-oom
-- How often each lease has been beaten; nothing for a worker that holds jobs and has no lease.

local beats = {}
for _, worker in ipairs(redis.call('SMEMBERS', key('workers'))) do
  local beat = redis.call('HGET', key('lease', worker), 'beat')
  if beat or redis.call('EXISTS', key('hands', worker)) == 1 then
    table.insert(beats, { worker, beat })
  else
    redis.call('SREM', key('workers'), worker)
  end
end
return beats
