#!lua flags=allow-oom
-- Take no jobs of a company for so many milliseconds, for it is about to be deleted. Not while it has jobs that have not
-- ended, unless `is_forced` is said. Answers whether none are taken.
-- Safe because nobody creates a job, or runs one again, between the look and the mark.

local company, is_forced, milliseconds = ARGV[1], ARGV[2] == '1', ARGV[3]
if not is_forced and queued(company) + redis.call('SCARD', key('held', company)) > 0 then
  return 0
end
redis.call('SET', key('closed', company), '', 'PX', milliseconds)
return 1
