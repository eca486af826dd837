#!lua flags=allow-oom
-- Say what is wanted of the worker of an id, or of all of a name, and wake them. One that was told to stop does not go
-- on. Answers how many were told, and how many stop already.

local named, wanted, wake = ARGV[1], ARGV[2], ARGV[3]

local processes, stopping = 0, 0
for _, worker in ipairs(redis.call('SMEMBERS', key('workers'))) do
  local name, kind, before = unpack(redis.call('HMGET', key('lease', worker), 'name', 'kind', 'wanted'))
  if kind == 'worker' and (worker == named or name == named) then
    if before == 'stop' and wanted ~= 'stop' then
      stopping = stopping + 1
    else
      redis.call('HSET', key('lease', worker), 'wanted', wanted)
      processes = processes + 1
    end
  end
end
if processes > 0 then
  redis.call('PUBLISH', key('work'), wake)
end
return { processes, stopping }
