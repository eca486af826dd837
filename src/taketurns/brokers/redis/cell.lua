-- What the verbs have in common: where things stand in a cell, and the moves between them. Every verb begins with it.
--
-- KEYS[1] is the cell, a hash tag in braces. Every key begins with it, so that all of them are in one slot: those that
-- are only known while a verb runs too. A script runs alone, so whatever is written here together is seen together.
--
--   companies            set of ids                         company:<id>      hash: slug, weight, paused, limits,
--                                                                             updated_at
--   slugs                hash: slug to id
--   jobs:<company>       hash: id to what was submitted      ends:<company>    hash: id to how it ended
--   events:<company>:<id>   list of a job's moves, once it has had an unusual one: see `remember`
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
--   weights, weight      the weight of each company that waits, and their sum
--   keeps, kept          the hands of each company that holds some and does not wait, and their sum
--   processing           hash: running jobs to their claims  held:<company>    set of ids of running jobs
--   hands:<worker>       set of running jobs                 ended:<status>    jobs by the time they ended
--   key:<company>:<key>, keys   idempotency keys, by expiry
--   workers, lease:<id>  leases                              types, parked     types published, lines set aside
--   watch:<company>:<id> there while somebody watches a job  watching          there while somebody watches any
--   vouched              for a moment: see `vouch`
--   closed:<company>     there while the company is being deleted: no jobs of it are taken
--   refunds              `<job>:<reserved_at>` whose quota is to be given back, by the time the job ended
--
-- A job's status is where it stands: in `ends`, in `processing`, in `scheduled`, or else in a line, so a claim writes
-- nothing into the job itself, and its end only how it ended (decisions/0024).
--   A job    [moves told, retries, rescues, run_after, created_at, reserved_at, priority, max_retries, timeout_seconds,
--            queue, type, request_id, traceparent] and, on the next line, its payload; see `read_job`
--   A claim  <token> <worker> <started_at>
--   An end   [status, started_at, finished_at, expires_at, error] and, on the next line, its result if it has one
-- `reserved_at` is the moment that names the periods which a job is charged to, null when it is charged to none.
--
-- A job is named `<company>:<id>` wherever jobs of several companies stand. Times are whole microseconds since 1970,
-- which a double holds exactly until the year 2255.

local cell = KEYS[1]

local function key(kind, name, detail)
  if detail then
    return cell .. ':' .. kind .. ':' .. name .. ':' .. detail
  elseif name then
    return cell .. ':' .. kind .. ':' .. name
  end
  return cell .. ':' .. kind
end

local function whole(number)
  return string.format('%.0f', number)
end

local function optional(argument)
  if argument ~= '' then
    return string.sub(argument, 2)
  end
end

local read_now
local function now()
  if not read_now then
    local time = redis.call('TIME')
    read_now = time[1] * 1000000 + time[2]
  end
  return read_now
end

local function moment_of(at)
  return at ~= '' and tonumber(at) or now()
end

-- Commands that take many values are given all of them at once, or as many as a script may hold on its stack.
local AT_ONCE = 1000

local function write(command, name, values)
  for first = 1, #values, AT_ONCE do
    redis.call(command, name, unpack(values, first, math.min(first + AT_ONCE - 1, #values)))
  end
end

local function read(command, name, fields)
  if #fields <= AT_ONCE then
    return #fields > 0 and redis.call(command, name, unpack(fields)) or {}
  end
  local told = {}
  for first = 1, #fields, AT_ONCE do
    local last = math.min(first + AT_ONCE - 1, #fields)
    for _, value in ipairs(redis.call(command, name, unpack(fields, first, last))) do
      table.insert(told, value)
    end
  end
  return told
end

-- Writes that nothing of a verb reads again are put together, each command on each key once, until `write_all`.
local soon_of, soon_in_order = {}, {}

local function soon(command, name, ...)
  local writes = soon_of[command .. name]
  if not writes then
    writes = { command = command, name = name }
    soon_of[command .. name] = writes
    table.insert(soon_in_order, writes)
  end
  for place = 1, select('#', ...) do
    writes[#writes + 1] = select(place, ...)
  end
end

local function write_all()
  for _, writes in ipairs(soon_in_order) do
    write(writes.command, writes.name, writes)
  end
  soon_of, soon_in_order = {}, {}
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

-- Keep a number of each company, and the sum of them all.
local function keep_sum(numbers, sum, company, number, counted)
  if number ~= counted then
    redis.call('INCRBY', key(sum), number - counted)
    if number > 0 then
      redis.call('HSET', key(numbers), company, number)
    else
      redis.call('HDEL', key(numbers), company)
    end
  end
end

-- Count a company's weight among those who wait, or the hands that it holds among those of companies that do not. Every
-- verb does it at its end, so that a company which waited before and does has no hands counted.
local function weigh(company)
  local counted = tonumber(redis.call('HGET', key('weights'), company) or 0)
  local waits = redis.call('SISMEMBER', key('waiting'), company) == 1
  local weight = waits and tonumber(redis.call('HGET', key('company', company), 'weight') or 0) or 0
  keep_sum('weights', 'weight', company, weight, counted)
  if not waits or counted == 0 then
    local kept = tonumber(redis.call('HGET', key('keeps'), company) or 0)
    keep_sum('keeps', 'kept', company, waits and 0 or redis.call('SCARD', key('held', company)), kept)
  end
end

-- The same for many: those who waited before and do are counted already.
local function weigh_all(companies)
  local waits, counted = read('SMISMEMBER', key('waiting'), companies), read('HMGET', key('weights'), companies)
  for place, company in ipairs(companies) do
    if waits[place] == 0 or not counted[place] then
      weigh(company)
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
  local most, tasks = unpack(redis.call('HMGET', key('company', company), 'max_in_flight', 'rate_tasks'))
  if (most or '') .. (tasks or '') ~= '' or redis.call('SISMEMBER', key('pausing'), company) == 1 then
    stand_or_rest(company, now())
  else
    redis.call('SADD', key('waiting'), company)
  end
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

-- A queue of this company has run out of jobs, and has left the rotation.
local function close_line(company, queue)
  redis.call('SREM', key('lines', company), queue)
  if redis.call('EXISTS', key('lines', company)) == 0 then
    redis.call('SREM', key('waiting'), company)
    redis.call('ZREM', key('rests'), company)
  elseif redis.call('SISMEMBER', key('pausing'), company) == 1 then
    stand_or_rest(company, now())  -- what it still has may be paused
  end
end

-- Whether a queue of this company has run out of jobs; then it leaves the rotation.
local function look_for_end_of_line(company, queue)
  if redis.call('EXISTS', key('line', company, queue)) == 1 then
    return false
  end
  leave(company, queue)
  close_line(company, queue)
  return true
end

-- A job as it was submitted: read into a table, and written again from it. What no verb changes stays as it is told.
local NUMBERS = '^%[(%d+),(%d+),(%d+),(%d+),(%d+),(%w+),(.*)$'

local function read_job(told)
  local number, retries, rescues, run_after, created_at, reserved_at, rest = string.match(told, NUMBERS)
  local priority, _, _, queue, type = unpack(cjson.decode('[' .. string.match(rest, '^[^\n]*')))
  return {
    number = tonumber(number), retries = tonumber(retries), rescues = tonumber(rescues), run_after = run_after,
    created_at = created_at, reserved_at = reserved_at, priority = priority, queue = queue, type = type, rest = rest,
    told = told,
  }
end

local function job_of(name)
  local told = redis.call('HGET', key('jobs', company_of(name)), id_of(name))
  return told and read_job(told) or nil
end

local function put_job(name, job)
  local told = string.format('[%d,%d,%d,%s,%s,%s,%s', job.number, job.retries, job.rescues, job.run_after,
    job.created_at, job.reserved_at, job.rest)
  soon('HSET', key('jobs', company_of(name)), id_of(name), told)
end

local function read_claim(told)
  local token, worker, started_at = string.match(told, '^(%S+) (%S+) (%d+)$')
  return { token = token, worker = worker, started_at = started_at, told = told }
end

local function end_of(name)
  return redis.call('HGET', key('ends', company_of(name)), id_of(name))
end

-- Where a job stands, nil when there is none or its time is up; with that its record, and how it is claimed or ended.
local function look_up(name)
  local job, ended = job_of(name), end_of(name)
  if not job then
    return nil
  elseif ended then
    local status, started_at, finished_at, expires_at = string.match(ended, '^%["(%a+)",(%w+),(%d+),(%d+),')
    if tonumber(expires_at) <= now() then
      return nil
    end
    local error = cjson.decode(string.match(ended, '^[^\n]*'))[5]
    return status, job, {
      started_at = started_at ~= 'null' and started_at or nil, finished_at = finished_at, told = ended,
      error = error ~= cjson.null and error or nil,
    }
  end
  local claim = redis.call('HGET', key('processing'), name)
  if claim then
    return 'processing', job, read_claim(claim)
  end
  return redis.call('ZSCORE', key('scheduled'), name) and 'scheduled' or 'pending', job
end

-- The line that a job of this type waits in while it is set aside: no queue can be called so.
local function aside_of(queue, type)
  return '!' .. type .. '!' .. queue
end

local function tell_work(queues)
  for queue in pairs(queues) do
    redis.call('PUBLISH', key('work'), queue)
  end
end

-- A job stands in its line once the writes are done; then `join_lines` is to be called.
local joining = {}

local function stand_in_line(name, job)
  local company = company_of(name)
  soon('ZADD', key('line', company, job.queue), job.priority, place_in_line(job.run_after, id_of(name), job.type))
  joining[company] = joining[company] or {}
  joining[company][job.queue] = true
end

-- Writes all, lets companies that have got work join the rotations, and tells of it.
local function join_lines()
  write_all()
  local told = {}
  for company, queues in pairs(joining) do
    for queue in pairs(queues) do
      if redis.call('SADD', key('lines', company), queue) == 1 and may_be_served(company) then
        join(company, queue)
        weigh(company)
      end
      told[queue] = true
    end
  end
  tell_work(told)
  return told
end

local function step_out_of_line(name, job)
  local company, place = company_of(name), place_in_line(job.run_after, id_of(name), job.type)
  if redis.call('ZREM', key('line', company, job.queue), place) == 1 then
    look_for_end_of_line(company, job.queue)
  else
    redis.call('ZREM', key('line', company, aside_of(job.queue, job.type)), place)
  end
end

local function stand_on_schedule(name, job, run_after)
  job.run_after = whole(run_after)
  soon('ZADD', key('scheduled'), job.run_after, name)
  soon('SADD', key('later', company_of(name)), id_of(name))
end

local function leave_schedule(name)
  soon('ZREM', key('scheduled'), name)
  soon('SREM', key('later', company_of(name)), id_of(name))
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

-- A job is let go once the writes are done; then `free_hands` is to be called.
local freeing = {}

local function let_go(name, worker)
  soon('HDEL', key('processing'), name)
  soon('SREM', key('held', company_of(name)), id_of(name))
  soon('SREM', key('hands', worker), name)
  freeing[company_of(name)] = true
end

-- Writes all, and lets companies that have free hands again be served.
local function free_hands()
  write_all()
  local some_rest, companies = redis.call('EXISTS', key('rests')) == 1, {}
  for company in pairs(freeing) do
    if some_rest and tonumber(redis.call('ZSCORE', key('rests'), company) or 0) == math.huge then
      stand_or_rest(company, now())
    end
    table.insert(companies, company)
  end
  weigh_all(companies)
end

-- Only moves of jobs that somebody watches are told; see watch.lua.
local some_are_watched
local function tell_change(name)
  if some_are_watched == nil then
    some_are_watched = redis.call('EXISTS', key('watching')) == 1
  end
  if some_are_watched and redis.call('EXISTS', key('watch', name)) == 1 then
    redis.call('PUBLISH', key('changes'), id_of(name))
  end
end

-- History. Of a job that is created, claimed and ends there is no list: all of it stands in the job, its claim and its
-- end. A move of another kind is appended to the list, after what was not told there yet.
local function move(number, kind, moment, error, run_after)
  return cjson.encode({ number, kind, moment, error or false, run_after or false })
end

local function append(name, job, kind, moment, error, run_after)
  if job.number == 1 then
    soon('RPUSH', key('events', name), move(1, 'created', job.created_at, nil, job.run_after))
  end
  job.number = job.number + 1
  soon('RPUSH', key('events', name), move(job.number, kind, whole(moment), error, run_after))
end

-- Append how a job ended, before it is run again.
local function append_end(name, job, status, ended)
  if ended.started_at then
    append(name, job, 'claimed', ended.started_at)
  end
  append(name, job, status, ended.finished_at, ended.error)
end

-- Append a move to the job's history; `started_at` when it is the first since the job was claimed.
local function remember(name, job, kind, moment, started_at, error, run_after)
  if started_at then
    append(name, job, 'claimed', started_at)
  end
  append(name, job, kind, moment, error, run_after)
  tell_change(name)
end

-- All moves of a job, in order, or nil when there is no such job.
local function history(name)
  local status, job, more = look_up(name)
  if not status then
    return nil
  end
  local moves, number = redis.call('LRANGE', key('events', name), 0, -1), job.number
  if #moves == 0 then
    moves = { move(1, 'created', job.created_at, nil, job.run_after) }
  end
  if more and more.started_at then
    number = number + 1
    table.insert(moves, move(number, 'claimed', more.started_at))
  end
  if more and more.finished_at then
    table.insert(moves, move(number + 1, status, more.finished_at, more.error))
  end
  return moves
end

-- How a job ended, as it is kept. It is forgotten after `lifetime` milliseconds, by the server's own clock.
local function ended_as(status, moment, lifetime, started_at, error)
  local expires_at = math.max(moment, now()) + lifetime * 1000
  return string.format('["%s",%s,%s,%s,', status, started_at or 'null', whole(moment), whole(expires_at))
    .. (error and cjson.encode(error) or 'null') .. ']'
end

-- End a job that stands nowhere any more.
local function finish(name, job, status, moment, lifetime, started_at, error, result)
  local ended = ended_as(status, moment, lifetime, started_at, error)
  soon('HSET', key('ends', company_of(name)), id_of(name), result and ended .. '\n' .. result or ended)
  soon('ZADD', key('ended', status), whole(moment), name)
  if job.reserved_at ~= 'null' and (status == 'failed' or status == 'cancelled' and not started_at) then
    soon('ZADD', key('refunds'), whole(moment), name .. ':' .. job.reserved_at)
  end
  tell_change(name)
end

-- What a job has lost that it cannot run without, or nil.
local function what_is_lost(told)
  if not told then
    return 'nothing is left of this job but its place'
  elseif not string.find(told, '\n', 1, true) then
    return 'the payload of this job is gone'
  end
end

-- Forget jobs that stand nowhere any more.
local function forget(names)
  local histories = {}
  for _, name in ipairs(names) do
    soon('HDEL', key('jobs', company_of(name)), id_of(name))
    soon('HDEL', key('ends', company_of(name)), id_of(name))
    table.insert(histories, key('events', name))
  end
  write_all()
  for first = 1, #histories, AT_ONCE do
    redis.call('DEL', unpack(histories, first, math.min(first + AT_ONCE - 1, #histories)))
  end
end

local lost = {}

-- Let a job that has lost something, and stands nowhere any more, go to the dead letters with what is known of it:
-- it fails, is handed to nobody, and is put down among the `lost`, which whoever ran the verb is told of.
local function bury(name, why, moment, lifetime, known)
  if redis.call('SISMEMBER', key('companies'), company_of(name)) == 0 then
    return forget({ name })
  end
  local job = job_of(name)
  if not job then
    local queue, type = known.queue or 'unknown', known.type or 'unknown'
    job = {
      number = math.max(redis.call('LLEN', key('events', name)), 1), retries = 0, rescues = 0,
      run_after = known.run_after or whole(moment), created_at = whole(moment), reserved_at = 'null',
      queue = queue, type = type,
      rest = string.format('%d,0,null,', known.priority or 0) .. cjson.encode(queue) .. ',' .. cjson.encode(type)
        .. ',null,null]',
    }
    put_job(name, job)
  end
  finish(name, job, 'failed', moment, lifetime, nil, 'job lost: ' .. why)
  table.insert(lost, { company_of(name), id_of(name), job.type, job.queue, why })
end
