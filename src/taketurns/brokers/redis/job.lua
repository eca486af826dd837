#!lua flags=allow-oom
-- All of a job as it stands, for whoever waits until that is on the disk.

vouch()
return redis.call('HGETALL', key('job', ARGV[1]))
