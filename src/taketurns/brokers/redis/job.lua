#!lua flags=allow-oom
-- A job as it stands: its status, as it was submitted, and how it is claimed or ended. With `vouch`, for whoever waits
-- until that is on the disk.

if ARGV[2] == 'vouch' then
  vouch()
end
local status, job, more = look_up(ARGV[1])
return status and { status, job.told, more and more.told or false }
