#!lua flags=allow-oom
-- Set jobs aside whose type no living worker knows, where they stand at the head of a line and keep what is behind
-- them from its turn. They stay pending, in a line that nobody serves: `!type!queue`, which no queue can be called.
-- Answers how many of each type, at most `most` in all. Lines are looked at only while there is such a type.

local orphans, queues, most = cjson.decode(ARGV[1]), cjson.decode(ARGV[2]), tonumber(ARGV[3])

local orphaned, some = {}, false
for _, type in ipairs(orphans) do
  orphaned[type] = true
end
for _, worker in ipairs(redis.call('SMEMBERS', key('workers'))) do
  for _, type in ipairs(cjson.decode(redis.call('HGET', key('lease', worker), 'types') or '[]')) do
    orphaned[type] = nil
  end
end
if not next(orphaned) then
  return {}
end

local parked, left = {}, most
local function set_aside(company, queue)
  local line = key('line', company, queue)
  for _, member in ipairs(redis.call('ZRANGE', line, 0, left - 1)) do
    local type = type_in_line(member)
    if orphaned[type] then
      local aside = '!' .. type .. '!' .. queue
      redis.call('ZADD', key('line', company, aside), redis.call('ZSCORE', line, member), member)
      redis.call('ZREM', line, member)
      if redis.call('EXISTS', key('job', company, id_in_line(member))) == 1 then
        redis.call('HSET', key('job', company, id_in_line(member)), 'aside', aside)
      end
      redis.call('SADD', key('parked'), company .. ':' .. aside)
      parked[type] = (parked[type] or 0) + 1
      left = left - 1
    end
  end
  look_for_end_of_line(company, queue)
  weigh(company)
end

for _, queue in ipairs(queues) do
  for _, company in ipairs(redis.call('ZRANGE', key('turns', queue), 0, -1)) do
    local head = redis.call('ZRANGE', key('line', company, queue), 0, 0)[1]
    if left > 0 and head and orphaned[type_in_line(head)] then
      set_aside(company, queue)
    end
  end
end

local told = {}
for type, count in pairs(parked) do
  table.insert(told, { type, count })
end
return told
