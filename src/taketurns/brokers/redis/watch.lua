#!lua flags=allow-oom
-- Have the moves of a job told for so many milliseconds, or longer if somebody watches it longer.

local job, length = ARGV[1], tonumber(ARGV[2])
if length > 0 and redis.call('PTTL', key('watch', job)) < length then
  redis.call('SET', key('watch', job), '', 'PX', length)
end
if length > 0 and redis.call('PTTL', key('watching')) < length then
  redis.call('SET', key('watching'), '', 'PX', length)
end
