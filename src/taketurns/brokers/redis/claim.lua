#!lua flags=allow-oom
-- Take up to `batch` turns for a worker: whose turns they are, then the head jobs of those companies' lines.
-- Safe because nobody runs in between. It costs what it takes, and one look at each company that is passed over, which
-- holds hands; never the backlog nor the number of companies. The rule is told in taketurns/engine/turns.py.
-- What is paused is no turn: a queue that is paused for all is not looked at, a line that is paused for its company rests,
-- and jobs of a paused type are passed over until they are set aside; see park.lua.
-- A company that has reached a limit rests when the claim is over, and is not looked at until it may be served. When the
-- claim is not full, it tells when the first that has used up its rate may be.
-- A job that has lost something is nobody's turn.

local LOOK_AHEAD = 100  -- how far a head is searched past jobs of types that this worker does not know
local MOST_LOST = 1000  -- more are left for the next claim
local MAY_RETURN = 1000  -- so many companies whose time has come are brought back in one claim
local FAR = 2 ^ 52

local moment = moment_of(ARGV[1])
local worker, token, batch = ARGV[2], ARGV[3], tonumber(ARGV[4])
local queues, skipped, skips = cjson.decode(ARGV[5]), {}, false
for _, type in ipairs(cjson.decode(ARGV[6])) do
  skipped[type] = true
  skips = true
end
local lifetime = tonumber(ARGV[7])

for _, company in ipairs(redis.call('ZRANGEBYSCORE', key('rests'), '-inf', whole(moment), 'LIMIT', 0, MAY_RETURN)) do
  stand_or_rest(company, moment)
  weigh(company)
end

local function end_pause(over)
  local owner, pause = string.match(over, '^([^!]*)!(.*)$')
  redis.call('ZREM', key('pause_ends'), over)
  redis.call('HDEL', key('pauses', owner), pause)
  if redis.call('EXISTS', key('pauses', owner)) == 0 then
    redis.call('SREM', key('pausing'), owner)
  end
  if owner ~= ALL then
    stand_or_rest(owner, moment)
    weigh(owner)
  end
end

local looks_for_pauses = some_are_paused()
if looks_for_pauses then
  local due = redis.call('ZRANGEBYSCORE', key('pause_ends'), '-inf', whole(moment), 'LIMIT', 0, MAY_RETURN)
  for _, over in ipairs(due) do
    end_pause(over)
  end
  local open = {}
  for _, queue in ipairs(queues) do
    if not queue_is_paused(ALL, queue, moment) then
      table.insert(open, queue)
    end
  end
  queues = open
end

local hands = redis.call('SCARD', key('processing')) + batch
local total_weight = tonumber(redis.call('GET', key('weight')) or 0)
local others_wait = redis.call('SCARD', key('waiting')) > 1
local known, reached, taken = {}, {}, {}

local function look_at(company)
  if not known[company] then
    local weight, most, paused, tasks, seconds, burst = unpack(redis.call('HMGET', key('company', company), 'weight',
      'max_in_flight', 'paused', 'rate_tasks', 'rate_seconds', 'rate_burst'))
    local rate = rate_of(tasks, seconds, burst)
    weight = tonumber(weight or 1)
    local share = math.ceil(hands * weight / math.max(total_weight, weight))
    known[company] = {
      weight = weight,
      held = redis.call('SCARD', key('held', company)),
      share = others_wait and math.min(share, math.max(hands - 1, 1)) or share,
      most = tonumber(most or '') or math.huge,
      is_paused = paused ~= '0',
      rate = rate,
      owes = rate and owed(company, rate, moment),
      started = 0,
    }
  end
  return known[company]
end

local function is_below_its_limits(candidate)
  local rate = candidate.rate
  return candidate.held < candidate.most and (not rate or candidate.owes <= rate.most - rate.start)
end

-- The first job of a line that this worker may take. A line that begins with a paused type is to be looked at by park.
local function head_of(company, queue)
  local line, paused = key('line', company, queue), {}
  local function may_be_taken(member)
    local type = type_in_line(member)
    if looks_for_pauses and paused[type] == nil then
      paused[type] = type_is_paused(company, queue, type, moment)
    end
    return not skipped[type] and not paused[type]
  end
  local first = redis.call('ZRANGE', line, 0, 0)[1]
  if not first or not skips and not looks_for_pauses or may_be_taken(first) then
    return first
  end
  if paused[type_in_line(first)] then
    redis.call('SADD', key('blocked'), company .. ':' .. queue)
  end
  for _, member in ipairs(redis.call('ZRANGE', line, 1, LOOK_AHEAD)) do
    if may_be_taken(member) then
      return member
    end
  end
end

local function take(company, queue, member)
  local job = company .. ':' .. id_in_line(member)
  local priority = redis.call('ZSCORE', key('line', company, queue), member)
  redis.call('ZREM', key('line', company, queue), member)
  local why = what_is_lost(job)
  if why then
    bury(job, why, moment, lifetime,
      { type = type_in_line(member), queue = queue, priority = priority, run_after = run_after_in_line(member) })
    return false
  end
  redis.call('HSET', key('job', job), 'status', 'processing', 'claim_token', token, 'worker_id', worker,
    'started_at', whole(moment))
  local number = remember(job, 'claimed', moment)
  redis.call('SADD', key('processing'), job)
  redis.call('SADD', key('held', company), id_of(job))
  redis.call('SADD', key('hands', worker), job)
  local told = redis.call('HMGET', key('job', job), 'type', 'queue', 'priority', 'run_after', 'retry_count',
    'rescue_count', 'payload', 'max_retries', 'timeout_seconds', 'request_id', 'created_at', 'traceparent')
  table.insert(taken, { company, id_of(job), number, whole(moment), told })
  return true
end

-- A rotation that finds nobody to serve goes on to the furthest place of those who want nothing.
local function pass_idle_places(queue)
  local furthest = 0
  while true do
    local company, place = unpack(redis.call('ZREVRANGE', key('idle', queue), furthest, furthest, 'WITHSCORES'))
    if not company or tonumber(place) <= reached[queue] then
      return
    end
    local idle = look_at(company)
    if idle.is_paused or is_below_its_limits(idle) then
      reached[queue] = tonumber(place)
      return
    end
    furthest = furthest + 1
  end
end

-- Whole rounds are taken from every place of a queue before numbers become too large to be exact; nobody can tell.
local function rebase(queue)
  local rounds = reached[queue] - reached[queue] % ROUND
  for _, places in ipairs({ key('turns', queue), key('idle', queue), key('resting', queue) }) do
    for _, company in ipairs(redis.call('ZRANGE', places, 0, -1)) do
      redis.call('ZINCRBY', places, whole(-rounds), company)
    end
  end
  reached[queue] = reached[queue] - rounds
end

for _, queue in ipairs(queues) do
  reached[queue] = tonumber(redis.call('HGET', key('rotations'), queue) or 0)
  redis.call('ZREMRANGEBYSCORE', key('idle', queue), '-inf', whole(reached[queue]))
end

for _, lifted in ipairs({ false, true }) do
  for _, queue in ipairs(queues) do
    local turns, passed = key('turns', queue), 0
    while #taken < batch and #lost < MOST_LOST do
      local company, place = unpack(redis.call('ZRANGE', turns, passed, passed, 'WITHSCORES'))
      if not company then
        if lifted then
          pass_idle_places(queue)
        end
        break
      end
      local candidate = look_at(company)
      if is_below_its_limits(candidate) and (lifted or candidate.held < candidate.share) then
        local member = head_of(company, queue)
        if member and take(company, queue, member) then
          candidate.held = candidate.held + 1
          candidate.started = candidate.started + 1
          if candidate.rate then
            candidate.owes = candidate.owes + candidate.rate.start
          end
          reached[queue] = math.max(reached[queue], tonumber(place))
          redis.call('ZADD', turns, whole(place_after(reached[queue], candidate.weight)), company)
        end
        if look_for_end_of_line(company, queue) then
          weigh(company)
        elseif not member then
          passed = passed + 1
        end
      else
        passed = passed + 1
      end
    end
  end
end

for company, served in pairs(known) do
  if served.rate and served.started > 0 then
    redis.call('HSET', key('bucket', company), 'owed', whole(served.owes), 'seconds', served.rate.seconds,
      'at', whole(moment))
  end
  if not is_below_its_limits(served) then
    stand_or_rest(company, moment)
    weigh(company)
  end
end

for queue, place in pairs(reached) do
  if place >= FAR then
    rebase(queue)
  end
  if redis.call('HEXISTS', key('rotations'), queue) == 1 then
    redis.call('HSET', key('rotations'), queue, whole(reached[queue]))
  end
end
if #taken > 0 then
  redis.call('SADD', key('workers'), worker)
end
local again
if #taken < batch then
  again = redis.call('ZRANGEBYSCORE', key('rests'), '(' .. whole(moment), '(+inf', 'WITHSCORES', 'LIMIT', 0, 1)[2]
end
return { taken, lost, again and whole(tonumber(again)) or false }
