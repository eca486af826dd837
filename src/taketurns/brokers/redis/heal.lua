#!lua flags=allow-oom
-- Put companies that have pending jobs, may be served and stand in no rotation back into it, and add up their weights
-- and hands again. Nothing should be found: this is the net under `join` and `weigh`, for keys that somebody changed by hand.
-- It is called for some companies at a time, and at last for none.

local healed = 0
for _, company in ipairs(ARGV) do
  for _, queue in ipairs(redis.call('SMEMBERS', key('lines', company))) do
    if not look_for_end_of_line(company, queue) and may_be_served(company) then
      healed = healed + join(company, queue)
    end
  end
  stand_or_rest(company, moment_of(''))
  weigh(company)
end

if #ARGV == 0 then
  for numbers, sum in pairs({ weights = 'weight', keeps = 'kept' }) do
    local total = 0
    for _, number in ipairs(redis.call('HVALS', key(numbers))) do
      total = total + number
    end
    redis.call('SET', key(sum), total)
  end
end
return healed
