#!lua flags=no-writes
-- The moves of a job, in order; nothing when there is no such job.

return history(ARGV[1]) or false
