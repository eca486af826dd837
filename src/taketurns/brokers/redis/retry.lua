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
local name = company .. ':' .. ARGV[3]
local status, job, ended = look_up(name)
if not status or status == 'processing' then
  return status or false
elseif status == 'pending' then
  vouch()
  return status
elseif status == 'scheduled' then
  leave_schedule(name)
elseif seen and tonumber(seen) ~= job.number + (ended.started_at and 2 or 1) then
  return false
else
  soon('ZREM', key('ended', status), name)
  soon('HDEL', key('ends', company), id_of(name))
  append_end(name, job, status, ended)
  job.reserved_at = ARGV[4] ~= '' and ARGV[4] or 'null'
end
remember(name, job, 'requeued', moment)
job.retries, job.rescues, job.run_after = 0, 0, whole(moment)
put_job(name, job)
stand_in_line(name, job)
join_lines()
return status
