#!lua flags=no-writes
-- What a worker holds, each told as it was submitted and claimed: as far as it takes to release it or to report on it.

local names = redis.call('SMEMBERS', key('hands', ARGV[1]))
local claims, held = read('HMGET', key('processing'), names), {}
for place, name in ipairs(names) do
  local told = redis.call('HGET', key('jobs', company_of(name)), id_of(name))
  if told and claims[place] then  -- one that is lost waits for the rescue
    table.insert(held, { name, told, claims[place] })
  end
end
return held
