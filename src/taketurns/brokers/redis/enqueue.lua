#!lua
-- Create jobs of one company, all or none, each once for its idempotency key, while as many may wait.
-- Safe because every key is looked at before anything is written, and because nobody runs in between. Not run at all
-- when memory is full.

local moment = moment_of(ARGV[1])
local company = company_named(ARGV[2])
local key_lifetime = tonumber(ARGV[3])
local request_id, traceparent = ARGV[4], ARGV[5]
if is_closed(company or ARGV[2]) then
  return { 'closed' }
elseif not company then
  return { 'unknown' }
end

local answers, created, conflicts, own = {}, {}, {}, {}
for first = 6, #ARGV, 12 do
  local task = {
    id = ARGV[first], type = ARGV[first + 1], payload = ARGV[first + 2], queue = ARGV[first + 3],
    priority = ARGV[first + 4], run_after = optional(ARGV[first + 5]), delay = optional(ARGV[first + 6]),
    max_retries = ARGV[first + 7], timeout_seconds = ARGV[first + 8], key = optional(ARGV[first + 9]),
    fingerprint = ARGV[first + 10], reserved_at = ARGV[first + 11],
  }
  local earlier
  if task.key then
    earlier = own[task.key]
    if not earlier then
      local stored = redis.call('HMGET', key('key', company, task.key), 'id', 'fingerprint', 'expires_at')
      if stored[1] and tonumber(stored[3]) > moment then
        earlier = { id = stored[1], fingerprint = stored[2] }
      end
    end
    own[task.key] = earlier or task
  elseif redis.call('EXISTS', key('job', company, task.id)) == 1 then
    earlier = { id = task.id, fingerprint = task.fingerprint }
  end
  if not earlier then
    table.insert(created, task)
    table.insert(answers, task)
  elseif earlier.fingerprint == task.fingerprint then
    table.insert(answers, { id = earlier.id })
  else
    table.insert(conflicts, (first - 6) / 12)
  end
end
if #conflicts > 0 then
  return { 'conflict', conflicts }
end
if #created == 0 then
  vouch()
else
  local most = redis.call('HGET', key('company', company), 'max_queued')
  if (most or '') ~= '' and queued(company) + #created > tonumber(most) then
    return { 'full', tonumber(most), #created }
  end
end

local queues = {}
for _, task in ipairs(created) do
  local job = company .. ':' .. task.id
  local run_after = tonumber(task.run_after or (moment + tonumber(task.delay or 0)))
  redis.call('HSET', key('job', job), 'type', task.type, 'payload', task.payload, 'queue', task.queue,
    'priority', task.priority, 'run_after', whole(run_after), 'max_retries', task.max_retries,
    'retry_count', 0, 'rescue_count', 0, 'created_at', whole(moment), 'reserved_at', task.reserved_at)
  local given = { timeout_seconds = task.timeout_seconds, request_id = request_id, traceparent = traceparent }
  for name, value in pairs(given) do
    if value ~= '' then
      redis.call('HSET', key('job', job), name, optional(value))
    end
  end
  redis.call('SADD', key('jobs', company), task.id)
  if task.key then
    local name = company .. ':' .. task.key
    redis.call('HSET', key('key', name), 'id', task.id, 'fingerprint', task.fingerprint,
      'expires_at', whole(moment + key_lifetime * 1000))
    redis.call('PEXPIRE', key('key', name), whole(key_lifetime))
    redis.call('ZADD', key('keys'), whole(moment + key_lifetime * 1000), name)
  end
  remember(job, 'created', moment, nil, run_after)
  task.run_after, task.created_at = whole(run_after), whole(moment)
  if run_after > moment then
    task.status = 'scheduled'
    stand_on_schedule(job, run_after)
  else
    task.status = 'pending'
    queues[stand_in_line(job)] = true
  end
end
weigh(company)
tell_work(queues)

local told = {}
for _, task in ipairs(answers) do
  table.insert(told, { task.id, task.status or false, task.run_after or false, task.created_at or false })
end
return { 'created', company, told }
