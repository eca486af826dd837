-- What the verbs have in common: where things stand in a cell, and the moves between them. Every verb begins with it.
--
-- KEYS[1] is the cell, a hash tag in braces. Every key begins with it, so that all of them are in one slot: those that
-- are only known while a verb runs too. A script runs alone, so whatever is written here together is seen together.
--
--   companies            set of ids                         company:<id>      hash: slug, weight, paused, limits,
--                                                                             updated_at
--   slugs                hash: slug to id                    jobs:<company>    set of ids
--   job:<company>:<id>   hash: all of a job                  events:<company>:<id>   list of its moves
--   scheduled            jobs by due time                    line:<company>:<queue>  pending jobs by priority
--   later:<company>      set of ids of scheduled jobs        asides:<company>  set of lines that were set aside
--   lines:<company>      set of queues with pending jobs     waiting           set of companies that may be served one
--   turns:<queue>        companies by the place of their next turn: those that wait
--   idle:<queue>         the same of companies that do not wait, until the rotation has passed them
--   rests                companies that have reached a limit, by when they may be served again, without end where a
--                        hand must be freed; resting:<queue>  their places, until they are back in turns:<queue>
--   pauses:<owner>       hash: `<queue>!<type>` to when the pause is over, empty for never; `owner` is a company or `all`
--   pausing              set of owners that have pauses      pause_ends        `<owner>!<queue>!<type>` by that time
--   pause_revision       how often pauses were told          blocked           lines with a paused type at their head
--   bucket:<company>     hash: what a company with a rate owes since its last start
--   rotations            hash: queue to the place that its rotation has reached
--   weights, weight      the weight of each company that waits or runs, and their sum
--   processing, held:<company>, hands:<worker>   sets of jobs that are running
--   ended:<status>       jobs by the time they ended         key:<company>:<key>, keys   idempotency keys, by expiry
--   workers, lease:<id>  leases                              types, parked     types published, lines set aside
--   watch:<company>:<id> there while somebody watches a job                 vouched    for a moment: see `vouch`
--   closed:<company>     there while the company is being deleted: no jobs of it are taken
--   refunds              `<job>:<reserved_at>` whose quota is to be given back, by the time the job ended
--
-- Of a job, `reserved_at` is the moment that names the periods which it is charged to, and empty when it is charged to
-- none; a job without it, or without its payload, has lost something: see `bury`.
--
-- A job is named `<company>:<id>` wherever jobs of several companies stand. Times are whole microseconds since 1970,
-- which a double holds exactly until the year 2255.

local cell = KEYS[1]

local function key(...)
  return cell .. ':' .. table.concat({ ... }, ':')
end

local function whole(number)
  return string.format('%.0f', number)
end

local function optional(argument)
  if argument ~= '' then
    return string.sub(argument, 2)
  end
end

local function moment_of(at)
  if at ~= '' then
    return tonumber(at)
  end
  local time = redis.call('TIME')
  return time[1] * 1000000 + time[2]
end

local function company_of(job)
  return string.sub(job, 1, 36)
end

local function id_of(job)
  return string.sub(job, 38)
end

-- To be called by a verb that answers what others wrote before, and writes nothing itself. Who waits until the disk has
-- what a verb wrote (WAITAOF) would otherwise wait for nothing: with this, for all that was written before it.
local function vouch()
  redis.call('SET', key('vouched'), '', 'PX', 1)
end

-- The id of the company that an id or a slug names, or nil.
local function company_named(name)
  local id = name
  if #name ~= 36 or redis.call('SISMEMBER', key('companies'), name) == 0 then
    id = redis.call('HGET', key('slugs'), name)
  end
  return id or nil
end

local function is_closed(company)
  return redis.call('EXISTS', key('closed', company)) == 1
end

-- Places. A round is ROUND units long, and a company of weight w has its turns at (n - 1/2) / w rounds, rounded down
-- to a unit. That is exact: two places of weights up to 100 that differ at all are 1 / 19800 of a round apart, more
-- than a unit, so units are ordered as places are, and tell each of them from every other. All numbers stay whole and
-- below 2^53: see `rebase`, and decisions/0010.
local ROUND = 32768

-- The first turn of this weight after a place. The place is less than a unit behind `within + 1`, and what a unit is
-- too much is less than what lies between a place and the next turn of any weight.
local function place_after(place, weight)
  local within = place % ROUND
  local turn = math.floor((2 * (within + 1) * weight + ROUND) / (2 * ROUND))
  return place - within + math.floor((2 * turn + 1) * ROUND / (2 * weight))
end

local function may_be_served(company)
  return redis.call('HGET', key('company', company), 'paused') == '0'
end

-- Count a company's weight among those who have jobs waiting or running, as long as it has any.
local function weigh(company)
  local weight = 0
  if redis.call('EXISTS', key('held', company)) == 1 or redis.call('SISMEMBER', key('waiting'), company) == 1 then
    weight = tonumber(redis.call('HGET', key('company', company), 'weight') or 0)
  end
  local counted = tonumber(redis.call('HGET', key('weights'), company) or 0)
  if weight ~= counted then
    redis.call('INCRBY', key('weight'), weight - counted)
    if weight > 0 then
      redis.call('HSET', key('weights'), company, weight)
    else
      redis.call('HDEL', key('weights'), company)
    end
  end
end

-- Rates, as taketurns/engine/rate.py tells them; the names are the same. Whole numbers below 2^53 are divided exactly.
local function divided(number, by)
  return (number - number % by) / by
end

local function rate_of(tasks, seconds, burst)
  if (tasks or '') ~= '' then
    local start = seconds * 1000000
    return { tasks = tonumber(tasks), seconds = tonumber(seconds), start = start, most = burst * start }
  end
end

local function owed(company, rate, moment)
  local owes, seconds, at = unpack(redis.call('HMGET', key('bucket', company), 'owed', 'seconds', 'at'))
  if not at or at - moment > divided(rate.most, rate.tasks) then
    return 0
  end
  owes = tonumber(owes)
  if tonumber(seconds) ~= rate.seconds then
    owes = divided(owes + seconds * 1000000 - 1, seconds * 1000000) * rate.start
  end
  local filling = math.min(math.max(moment - at, 0), divided(rate.most, rate.tasks) + 1)
  return math.max(math.min(owes, rate.most) - filling * rate.tasks, 0)
end

-- When a company that has reached a limit may be served again, at the earliest: never while all its hands are in use.
local function limited_until(company, moment)
  local most, tasks, seconds, burst = unpack(redis.call('HMGET', key('company', company), 'max_in_flight', 'rate_tasks',
    'rate_seconds', 'rate_burst'))
  if (most or '') ~= '' and redis.call('SCARD', key('held', company)) >= tonumber(most) then
    return '+inf'
  end
  local rate = rate_of(tasks, seconds, burst)
  local owes = rate and owed(company, rate, moment) or 0
  if rate and owes > rate.most - rate.start then
    local from = math.max(moment, tonumber(redis.call('HGET', key('bucket', company), 'at')))
    return whole(from + divided(owes - rate.most + rate.start + rate.tasks - 1, rate.tasks))
  end
end

-- Pauses. Those of a company are told apart from those of `all`; an empty queue or type is any.
local ALL = 'all'

local function is_in_force(pause_until, moment)
  return pause_until and (pause_until == '' or tonumber(pause_until) > moment)
end

local function queue_is_paused(owner, queue, moment)
  return is_in_force(redis.call('HGET', key('pauses', owner), queue .. '!'), moment)
end

local function type_is_paused(company, queue, type, moment)
  for _, owner in ipairs({ ALL, company }) do
    local any, here = unpack(redis.call('HMGET', key('pauses', owner), '!' .. type, queue .. '!' .. type))
    if is_in_force(any, moment) or is_in_force(here, moment) then
      return true
    end
  end
  return false
end

local function some_are_paused()
  return redis.call('EXISTS', key('pausing')) == 1
end

local function move_turn(company, queue, from, to)
  local place = redis.call('ZSCORE', key(from, queue), company)
  if place then
    redis.call('ZREM', key(from, queue), company)
    redis.call('ZADD', key(to, queue), place, company)
  end
end

-- Let a company with work rest while it has reached a limit, and come back when it has not; it keeps its places. A line
-- rests as long as its queue is paused for the company.
local function stand_or_rest(company, moment)
  if not may_be_served(company) or redis.call('EXISTS', key('lines', company)) == 0 then
    redis.call('ZREM', key('rests'), company)
    return
  end
  local until_then = limited_until(company, moment)
  if until_then then
    redis.call('ZADD', key('rests'), until_then, company)
  else
    redis.call('ZREM', key('rests'), company)
  end
  local has_pauses, stands = redis.call('SISMEMBER', key('pausing'), company) == 1, false
  for _, queue in ipairs(redis.call('SMEMBERS', key('lines', company))) do
    if until_then or has_pauses and queue_is_paused(company, queue, moment) then
      move_turn(company, queue, 'turns', 'resting')
    else
      move_turn(company, queue, 'resting', 'turns')
      stands = true
    end
  end
  redis.call(stands and 'SADD' or 'SREM', key('waiting'), company)
end

-- A company that has got work in a queue: its turn comes where it was, or, a newcomer's, where the rotation is.
local function join(company, queue)
  if redis.call('ZSCORE', key('resting', queue), company) then
    return 0
  end
  redis.call('HSETNX', key('rotations'), queue, 0)
  local place = redis.call('ZSCORE', key('idle', queue), company)
  if place then
    redis.call('ZREM', key('idle', queue), company)
  end
  place = place or redis.call('HGET', key('rotations'), queue)
  local joined = redis.call('ZADD', key('turns', queue), 'NX', place, company)
  stand_or_rest(company, moment_of(''))
  return joined
end

-- A company that has no work in a queue, or may not have it done, keeps its place until the rotation has passed it.
local function leave(company, queue)
  for _, places in ipairs({ key('turns', queue), key('resting', queue) }) do
    local place = redis.call('ZSCORE', places, company)
    if place then
      redis.call('ZREM', places, company)
      redis.call('ZADD', key('idle', queue), place, company)
    end
  end
end

-- A company's line stands in this order: priority is the score, and of equal ones the text decides.
local function place_in_line(run_after, id, type)
  return string.format('%018.0f:%s:%s', run_after, id, type)
end

local function run_after_in_line(member)
  return string.format('%.0f', tonumber(string.sub(member, 1, 18)))
end

local function type_in_line(member)
  return string.sub(member, 57)
end

local function id_in_line(member)
  return string.sub(member, 20, 55)
end

-- Whether a queue of this company has run out of jobs; then it leaves the rotation.
local function look_for_end_of_line(company, queue)
  if redis.call('EXISTS', key('line', company, queue)) == 1 then
    return false
  end
  leave(company, queue)
  redis.call('SREM', key('lines', company), queue)
  if redis.call('EXISTS', key('lines', company)) == 0 then
    redis.call('SREM', key('waiting'), company)
    redis.call('ZREM', key('rests'), company)
  elseif redis.call('SISMEMBER', key('pausing'), company) == 1 then
    stand_or_rest(company, moment_of(''))  -- what it still has may be paused
  end
  return true
end

local function stand_in_line(job)
  local company = company_of(job)
  local queue, priority, run_after, type =
    unpack(redis.call('HMGET', key('job', job), 'queue', 'priority', 'run_after', 'type'))
  redis.call('HSET', key('job', job), 'status', 'pending')
  redis.call('ZADD', key('line', company, queue), priority, place_in_line(run_after, id_of(job), type))
  if redis.call('SADD', key('lines', company), queue) == 1 and may_be_served(company) then
    join(company, queue)
  end
  return queue
end

local function step_out_of_line(job)
  local company = company_of(job)
  local queue, run_after, type, aside =
    unpack(redis.call('HMGET', key('job', job), 'queue', 'run_after', 'type', 'aside'))
  redis.call('ZREM', key('line', company, aside or queue), place_in_line(run_after, id_of(job), type))
  if aside then
    redis.call('HDEL', key('job', job), 'aside')
  else
    look_for_end_of_line(company, queue)
  end
end

local function stand_on_schedule(job, run_after)
  redis.call('HSET', key('job', job), 'status', 'scheduled', 'run_after', whole(run_after))
  redis.call('ZADD', key('scheduled'), whole(run_after), job)
  redis.call('SADD', key('later', company_of(job)), id_of(job))
end

local function leave_schedule(job)
  redis.call('ZREM', key('scheduled'), job)
  redis.call('SREM', key('later', company_of(job)), id_of(job))
end

-- How many jobs of a company are scheduled or pending, by a look at each of its lines, however long they are.
local function queued(company)
  local number = redis.call('SCARD', key('later', company))
  for _, lines in ipairs({ 'lines', 'asides' }) do
    for _, queue in ipairs(redis.call('SMEMBERS', key(lines, company))) do
      number = number + redis.call('ZCARD', key('line', company, queue))
    end
  end
  return number
end

local function let_go(job, worker)
  redis.call('SREM', key('processing'), job)
  redis.call('SREM', key('held', company_of(job)), id_of(job))
  redis.call('SREM', key('hands', worker), job)
  redis.call('HDEL', key('job', job), 'claim_token', 'worker_id')
  if tonumber(redis.call('ZSCORE', key('rests'), company_of(job)) or 0) == math.huge then
    stand_or_rest(company_of(job), moment_of(''))
  end
end

-- Only moves of jobs that somebody watches are told; see watch.lua.
local function tell_change(job)
  if redis.call('EXISTS', key('watch', job)) == 1 then
    redis.call('PUBLISH', key('changes'), id_of(job))
  end
end

local function tell_work(queues)
  for queue in pairs(queues) do
    redis.call('PUBLISH', key('work'), queue)
  end
end

-- Append a move to the job's history; answers its number.
local function remember(job, kind, moment, error, run_after)
  local number = redis.call('HINCRBY', key('job', job), 'event_number', 1)
  local move = { number, kind, whole(moment), error or false, run_after and whole(run_after) or false }
  redis.call('RPUSH', key('events', job), cjson.encode(move))
  tell_change(job)
  return number
end

-- End a job that stands nowhere any more. It is forgotten after `lifetime` milliseconds.
local function finish(job, status, moment, lifetime, error)
  redis.call('HSET', key('job', job), 'status', status, 'finished_at', whole(moment),
    'expires_at', whole(moment + lifetime * 1000))
  if error then
    redis.call('HSET', key('job', job), 'error', error)
  end
  remember(job, status, moment, error)
  redis.call('ZADD', key('ended', status), whole(moment), job)
  if status ~= 'completed' then
    local reserved, started = unpack(redis.call('HMGET', key('job', job), 'reserved_at', 'started_at'))
    if (reserved or '') ~= '' and (status == 'failed' or not started) then
      redis.call('ZADD', key('refunds'), whole(moment), job .. ':' .. reserved)
    end
  end
  redis.call('PEXPIRE', key('job', job), whole(lifetime))
  redis.call('PEXPIRE', key('events', job), whole(lifetime))
end

-- What a job has lost that it cannot run without, or nil.
local function what_is_lost(job)
  local type, payload, reserved = unpack(redis.call('HMGET', key('job', job), 'type', 'payload', 'reserved_at'))
  if not type then
    return 'nothing is left of this job but its place'
  elseif not payload then
    return 'the payload of this job is gone'
  elseif not reserved then
    return 'this job no longer says which periods it is charged to, so that nobody is given a quota back by a guess'
  end
end

local function forget(job)
  redis.call('DEL', key('job', job), key('events', job))
  redis.call('SREM', key('jobs', company_of(job)), id_of(job))
end

local lost = {}

-- Let a job that has lost something, and stands nowhere any more, go to the dead letters with what is known of it:
-- it fails, is handed to nobody, and is put down among the `lost`, which whoever ran the verb is told of.
local function bury(job, why, moment, lifetime, known)
  if redis.call('SISMEMBER', key('companies'), company_of(job)) == 0 then
    return forget(job)
  end
  local kept = {
    type = known.type or 'unknown', queue = known.queue or 'unknown', priority = known.priority or 0,
    run_after = known.run_after or whole(moment), created_at = whole(moment), max_retries = 0, retry_count = 0,
    rescue_count = 0, event_number = redis.call('LLEN', key('events', job)),
  }
  for name, value in pairs(kept) do
    redis.call('HSETNX', key('job', job), name, value)
  end
  redis.call('SADD', key('jobs', company_of(job)), id_of(job))
  finish(job, 'failed', moment, lifetime, 'job lost: ' .. why)
  local type, queue = unpack(redis.call('HMGET', key('job', job), 'type', 'queue'))
  table.insert(lost, { company_of(job), id_of(job), type, queue, why })
end
