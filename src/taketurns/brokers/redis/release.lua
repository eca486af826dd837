#!lua flags=allow-oom
-- Give claimed jobs back unstarted, with no penalty: pending, where they stood in their company's line.
-- Safe because the claim's token must still stand on the job; whoever moved it since then has won.

local moment = moment_of(ARGV[1])

local released, queues, companies = {}, {}, {}
for first = 2, #ARGV, 2 do
  local job, token = ARGV[first], ARGV[first + 1]
  local stands, worker = unpack(redis.call('HMGET', key('job', job), 'claim_token', 'worker_id'))
  if stands == token then
    let_go(job, worker)
    redis.call('HDEL', key('job', job), 'started_at')
    remember(job, 'released', moment)
    queues[stand_in_line(job)] = true
    companies[company_of(job)] = true
    table.insert(released, id_of(job))
  end
end
for company in pairs(companies) do
  weigh(company)
end
tell_work(queues)
return released
