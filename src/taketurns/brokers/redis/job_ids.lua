#!lua flags=no-writes
-- The ids of some of a company's jobs, from a cursor on, and the next cursor; what was submitted stays here.

local cursor, found = unpack(redis.call('HSCAN', key('jobs', ARGV[1]), ARGV[2], 'COUNT', ARGV[3]))
local ids = {}
for place = 1, #found, 2 do
  table.insert(ids, found[place])
end
return { cursor, ids }
