#!lua flags=allow-oom
-- Set jobs aside that may not be done now, where they stand at the head of a line and keep what is behind them from its
-- turn: those of a type that no living worker knows, and those of a type that is paused. They stay pending, in a line
-- that nobody serves: `!type!queue`, which no queue can be called. Answers how many of each type, at most `most` in all.
-- All lines are looked at only while there is a type that nobody knows; otherwise those that a claim found blocked.

local orphans, queues, most = cjson.decode(ARGV[1]), cjson.decode(ARGV[2]), tonumber(ARGV[3])
local moment = moment_of(ARGV[4])

local orphaned = {}
for _, type in ipairs(orphans) do
  orphaned[type] = true
end
if next(orphaned) then
  for _, worker in ipairs(redis.call('SMEMBERS', key('workers'))) do
    for _, type in ipairs(cjson.decode(redis.call('HGET', key('lease', worker), 'types') or '[]')) do
      orphaned[type] = nil
    end
  end
end

local parked, left = {}, most
local function set_aside(company, queue)
  local line, paused = key('line', company, queue), {}
  for _, member in ipairs(redis.call('ZRANGE', line, 0, left - 1)) do
    local type = type_in_line(member)
    if paused[type] == nil then
      paused[type] = type_is_paused(company, queue, type, moment)
    end
    if orphaned[type] or paused[type] then
      local aside = aside_of(queue, type)
      redis.call('ZADD', key('line', company, aside), redis.call('ZSCORE', line, member), member)
      redis.call('ZREM', line, member)
      redis.call('SADD', key('parked'), company .. ':' .. aside)
      redis.call('SADD', key('asides', company), aside)
      parked[type] = (parked[type] or 0) + 1
      left = left - 1
    end
  end
  look_for_end_of_line(company, queue)
  weigh(company)
end

local function head_type(company, queue)
  local head = redis.call('ZRANGE', key('line', company, queue), 0, 0)[1]
  return head and type_in_line(head)
end

if next(orphaned) then
  for _, queue in ipairs(queues) do
    for _, company in ipairs(redis.call('ZRANGE', key('turns', queue), 0, -1)) do
      if left > 0 and orphaned[head_type(company, queue)] then
        set_aside(company, queue)
      end
    end
  end
end
for _, line in ipairs(redis.call('SRANDMEMBER', key('blocked'), most)) do
  local company, queue = company_of(line), id_of(line)
  local function is_blocked()
    local type = head_type(company, queue)
    return type and type_is_paused(company, queue, type, moment)
  end
  if left > 0 and is_blocked() then
    set_aside(company, queue)
  end
  if not is_blocked() then
    redis.call('SREM', key('blocked'), line)
  end
end

local told = {}
for type, count in pairs(parked) do
  table.insert(told, { type, count })
end
return told
