#!lua flags=allow-oom
-- Drop a company and its jobs, at most `most` of them; answers how many are left. It has no more turns from the first
-- call on, and a worker that reports on one of its jobs is told that it is gone.

local company, most = ARGV[1], tonumber(ARGV[2])
local slug = redis.call('HGET', key('company', company), 'slug')
if slug and redis.call('HGET', key('slugs'), slug) == company then
  redis.call('HDEL', key('slugs'), slug)
end
redis.call('SREM', key('companies'), company)
for _, pause in ipairs(redis.call('HKEYS', key('pauses', company))) do
  redis.call('ZREM', key('pause_ends'), company .. '!' .. pause)
end
redis.call('SREM', key('pausing'), company)
redis.call('DEL', key('company', company), key('bucket', company), key('pauses', company))
redis.call('ZREM', key('rests'), company)
redis.call('SREM', key('waiting'), company)
for _, queue in ipairs(redis.call('HKEYS', key('rotations'))) do
  redis.call('ZREM', key('turns', queue), company)
  redis.call('ZREM', key('idle', queue), company)
  redis.call('ZREM', key('resting', queue), company)
end

local gone = {}
for _, id in ipairs(redis.call('HRANDFIELD', key('jobs', company), most)) do
  local name = company .. ':' .. id
  local job, claim = job_of(name), redis.call('HGET', key('processing'), name)
  if claim then
    let_go(name, read_claim(claim).worker)
  else
    step_out_of_line(name, job)
  end
  leave_schedule(name)
  for _, status in ipairs({ 'completed', 'failed', 'cancelled' }) do
    soon('ZREM', key('ended', status), name)
  end
  table.insert(gone, name)
end
free_hands()
forget(gone)
for _, name in ipairs(gone) do
  tell_change(name)
end
local left = redis.call('HLEN', key('jobs', company))
if left == 0 then  -- what still stands in its lines is lost
  for _, queue in ipairs(redis.call('SMEMBERS', key('lines', company))) do
    redis.call('DEL', key('line', company, queue))
  end
  redis.call('DEL', key('lines', company), key('asides', company), key('later', company), key('ends', company))
end
weigh(company)
return left
