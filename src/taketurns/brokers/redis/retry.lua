#!lua flags=allow-oom
-- Run a job again by hand, with a fresh count of retries: one that has ended, or at once one that waits for its time.
-- Answers the status that the job had; `processing` means that nothing was done, and `pending` jobs wait as they did.
-- What a job that had ended is charged to from now on is told; one that waits stays charged as it was. So the charge must
-- fit: when the number of the move that was seen last is told, a job that has ended by another is left as it is, and
-- nothing is answered. Of a company that is being deleted none is run again: `closed`.

local moment, company, seen = moment_of(ARGV[1]), company_named(ARGV[2]), optional(ARGV[5])
if not company then
  return false
elseif is_closed(company) then
  return 'closed'
end
local job = company .. ':' .. ARGV[3]
local status, number = unpack(redis.call('HMGET', key('job', job), 'status', 'event_number'))
if not status or status == 'processing' then
  return status
elseif status == 'pending' then
  vouch()
  return status
elseif status == 'scheduled' then
  leave_schedule(job)
elseif seen and seen ~= number then
  return false
else
  redis.call('ZREM', key('ended', status), job)
  redis.call('PERSIST', key('job', job))
  redis.call('PERSIST', key('events', job))
  redis.call('HSET', key('job', job), 'reserved_at', ARGV[4])
end
redis.call('HDEL', key('job', job), 'result', 'error', 'started_at', 'finished_at', 'expires_at')
redis.call('HSET', key('job', job), 'retry_count', 0, 'rescue_count', 0, 'run_after', whole(moment))
remember(job, 'requeued', moment)
local queue = stand_in_line(job)
weigh(company)
tell_work({ [queue] = true })
return status
