-- What the verbs have in common: where things stand in a cell, and the moves between them. Every verb begins with it.
--
-- KEYS[1] is the cell, a hash tag in braces. Every key begins with it, so that all of them are in one slot: those that
-- are only known while a verb runs too. A script runs alone, so whatever is written here together is seen together.
--
--   companies            set of ids                         company:<id>      hash: slug, weight, max_in_flight,
--                                                                             paused, updated_at
--   slugs                hash: slug to id                    jobs:<company>    set of ids
--   job:<company>:<id>   hash: all of a job                  events:<company>:<id>   list of its moves
--   scheduled            jobs by due time                    line:<company>:<queue>  pending jobs by priority
--   lines:<company>      set of queues with pending jobs     waiting           set of companies that may be served one
--   turns:<queue>        companies by the place of their next turn: those that wait
--   idle:<queue>         the same of companies that do not wait, until the rotation has passed them
--   rotations            hash: queue to the place that its rotation has reached
--   weights, weight      the weight of each company that waits or runs, and their sum
--   processing, held:<company>, hands:<worker>   sets of jobs that are running
--   ended:<status>       jobs by the time they ended         key:<company>:<key>, keys   idempotency keys, by expiry
--   workers, lease:<id>  leases                              types, parked     types published, lines set aside
--   watch:<company>:<id> there while somebody watches a job                 vouched    for a moment: see `vouch`
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

-- A company that has got work in a queue: its turn comes where it was, or, a newcomer's, where the rotation is.
local function join(company, queue)
  redis.call('HSETNX', key('rotations'), queue, 0)
  local place = redis.call('ZSCORE', key('idle', queue), company)
  if place then
    redis.call('ZREM', key('idle', queue), company)
  end
  place = place or redis.call('HGET', key('rotations'), queue)
  redis.call('SADD', key('waiting'), company)
  return redis.call('ZADD', key('turns', queue), 'NX', place, company)
end

-- A company that has no work in a queue, or may not have it done, keeps its place until the rotation has passed it.
local function leave(company, queue)
  local place = redis.call('ZSCORE', key('turns', queue), company)
  if place then
    redis.call('ZREM', key('turns', queue), company)
    redis.call('ZADD', key('idle', queue), place, company)
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
end

local function let_go(job, worker)
  redis.call('SREM', key('processing'), job)
  redis.call('SREM', key('held', company_of(job)), id_of(job))
  redis.call('SREM', key('hands', worker), job)
  redis.call('HDEL', key('job', job), 'claim_token', 'worker_id')
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
  local reserved, started = unpack(redis.call('HMGET', key('job', job), 'reserved_at', 'started_at'))
  if (reserved or '') ~= '' and (status == 'failed' or status == 'cancelled' and not started) then
    redis.call('ZADD', key('refunds'), whole(moment), job .. ':' .. reserved)
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
