#!lua flags=allow-oom
-- Give claimed jobs back unstarted, with no penalty: pending, where they stood in their company's line.
-- Safe because the claim's token must still stand on the job; whoever moved it since then has won.

local moment = moment_of(ARGV[1])

local names = {}
for first = 2, #ARGV, 2 do
  table.insert(names, ARGV[first])
end
local claims, released = read('HMGET', key('processing'), names), {}
for place, name in ipairs(names) do
  local claim = claims[place] and read_claim(claims[place])
  local job = claim and claim.token == ARGV[2 * place + 1] and not released[name] and job_of(name)
  if job then
    let_go(name, claim.worker)
    remember(name, job, 'released', moment, claim.started_at)
    stand_in_line(name, job)
    put_job(name, job)
    released[name] = true
  end
end
join_lines()
free_hands()

local ids = {}
for name in pairs(released) do
  table.insert(ids, id_of(name))
end
return ids
