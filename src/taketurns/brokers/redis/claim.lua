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

-- What a claim takes is found out before anything is written: companies and the heads of their lines are read a few at a
-- time, and turns are laid out in memory. See decisions/0024.
local FEW = 16  -- so many companies of a rotation are read at once, at the least
local known, rotations, lines, taken = {}, {}, {}, {}
local count = 0  -- how many are taken, those that were written down before included

-- How many hands a company of a weight may hold, by those who wait now, of those that the others leave.
local function shares()
  local hands = redis.call('HLEN', key('processing')) - (redis.call('GET', key('kept')) or 0) + batch - count
  local total_weight = tonumber(redis.call('GET', key('weight')) or 0)
  local most = redis.call('SCARD', key('waiting')) > 1 and math.max(hands - 1, 1) or hands
  return function(weight)
    return math.min(math.ceil(hands * weight / math.max(total_weight, weight)), most)
  end
end

local function look_at(company)
  local candidate = known[company]
  if not candidate then
    local weight, most, paused, tasks, seconds, burst = unpack(redis.call('HMGET', key('company', company), 'weight',
      'max_in_flight', 'paused', 'rate_tasks', 'rate_seconds', 'rate_burst'))
    local rate = rate_of(tasks, seconds, burst)
    candidate = {
      weight = tonumber(weight or 1),
      held = redis.call('SCARD', key('held', company)),
      most = tonumber(most or '') or math.huge,
      is_paused = paused ~= '0',
      rate = rate,
      owes = rate and owed(company, rate, moment),
      started = 0,
      ids = {},
    }
    known[company] = candidate
  end
  return candidate
end

local function is_below_its_limits(candidate)
  local rate = candidate.rate
  return candidate.held < candidate.most and (not rate or candidate.owes <= rate.most - rate.start)
end

-- A rotation as a claim sees it: `places` read from the start on, `next` of them not seen yet; and in `back`, from `first`
-- on, the next turns of those that were served. `moved` are the places of these, `ended` of those whose line has ended.
-- The first time, what they have reached is `found` already.
local function open_rotations(found)
  for place, reached in ipairs(found or read('HMGET', key('rotations'), queues)) do
    rotations[queues[place]] = {
      is_known = reached, began = tonumber(reached or 0), reached = tonumber(reached or 0), places = {}, read = 0,
      next = 1, back = {}, first = 1, moved = {}, ended = {},
    }
  end
end

local function comes_before(one, other)
  return one.place < other.place or one.place == other.place and one.company < other.company
end

local function put_back(rotation, turn)
  local back, place = rotation.back, #rotation.back
  while place >= rotation.first and comes_before(turn, back[place]) do
    back[place + 1] = back[place]
    place = place - 1
  end
  back[place + 1] = turn
end

local function next_turn(queue)
  local rotation = rotations[queue]
  if not rotation.places[rotation.next] and not rotation.is_whole then
    local most = math.max(FEW, math.min(batch, AT_ONCE))
    local found = redis.call('ZRANGE', key('turns', queue), rotation.read, rotation.read + most - 1, 'WITHSCORES')
    for place = 1, #found, 2 do
      table.insert(rotation.places, { company = found[place], place = tonumber(found[place + 1]) })
    end
    rotation.read = rotation.read + #found / 2
    rotation.is_whole = #found < 2 * most
  end
  local fresh, back = rotation.places[rotation.next], rotation.back[rotation.first]
  if fresh and (not back or comes_before(fresh, back)) then
    rotation.next = rotation.next + 1
    return fresh
  elseif back then
    rotation.first = rotation.first + 1
    return back
  end
end

-- A line as a claim sees it: its `members` from the head on, as many as were read; `next` is the first that is left.
local function line_of(company, queue)
  local name = key('line', company, queue)
  local line = lines[name]
  if not line then
    line = { name = name, company = company, queue = queue, members = {}, next = 1, is_taken = {}, taken = {}, paused = {} }
    lines[name] = line
  end
  return line
end

local function member_of(line, place)
  local members = line.members
  if not members[place] and not line.is_whole then
    local most = math.max(2, math.ceil(batch / 8), #members)
    local found = redis.call('ZRANGE', line.name, #members, #members + most - 1)
    for _, member in ipairs(found) do
      members[#members + 1] = member
    end
    line.is_whole = #found < most
  end
  return members[place]
end

local function may_be_taken(line, member)
  local type, paused = type_in_line(member), line.paused
  if looks_for_pauses and paused[type] == nil then
    paused[type] = type_is_paused(line.company, line.queue, type, moment)
  end
  return not skipped[type] and not paused[type]
end

-- The place of the first job of a line that this worker may take. One that begins with a paused type is for park.
local function head_of(line)
  if not skips and not looks_for_pauses then
    return member_of(line, line.next) and line.next
  end
  local place, seen = line.next, 0
  while seen <= LOOK_AHEAD do
    local member = member_of(line, place)
    if not member then
      return nil
    elseif not line.is_taken[place] then
      if may_be_taken(line, member) then
        return place
      elseif seen == 0 and line.paused[type_in_line(member)] then
        redis.call('SADD', key('blocked'), line.company .. ':' .. line.queue)
      end
      seen = seen + 1
    end
    place = place + 1
  end
end

local function take(line, place, candidate)
  local member = line.members[place]
  if place == line.next then
    repeat
      line.next = line.next + 1
    until not line.is_taken[line.next]
  else
    line.is_taken[place] = true
  end
  line.taken[#line.taken + 1] = member
  candidate.ids[#candidate.ids + 1] = id_in_line(member)
  candidate.held = candidate.held + 1
  candidate.started = candidate.started + 1
  if candidate.rate then
    candidate.owes = candidate.owes + candidate.rate.start
  end
  taken[#taken + 1] = line
  count = count + 1
end

-- A rotation that finds nobody to serve goes on to the furthest place of those who want nothing.
local function pass_idle_places(queue)
  local rotation, furthest = rotations[queue], 0
  local function wants_nothing(company)
    local idle = look_at(company)
    return idle.is_paused or is_below_its_limits(idle)
  end
  for company, place in pairs(rotation.ended) do
    if place > rotation.reached and wants_nothing(company) then
      rotation.reached = place
    end
  end
  while true do
    local company, place = unpack(redis.call('ZREVRANGE', key('idle', queue), furthest, furthest, 'WITHSCORES'))
    if not company or tonumber(place) <= rotation.reached then
      return
    elseif wants_nothing(company) then
      rotation.reached = tonumber(place)
      return
    end
    furthest = furthest + 1
  end
end

local function serve(queue, turn, candidate)
  local rotation, line = rotations[queue], line_of(turn.company, queue)
  local head = head_of(line)
  if head then
    take(line, head, candidate)
    rotation.reached = math.max(rotation.reached, turn.place)
    turn.place = place_after(rotation.reached, candidate.weight)
  end
  if not member_of(line, line.next) then
    rotation.moved[turn.company] = nil
    rotation.ended[turn.company] = turn.place
  elseif head then
    rotation.moved[turn.company] = turn.place
    put_back(rotation, turn)
  end
end

-- Lay out turns until the batch is full or nobody is left who may have one. Answers whether shares have held some back.
local function lay_out_turns(share, lifted, found)
  local some_are_held_back = false
  known, lines, taken = {}, {}, {}
  open_rotations(found)
  for _, queue in ipairs(queues) do
    while count < batch do
      local turn = next_turn(queue)
      if not turn then
        if lifted then
          pass_idle_places(queue)
        end
        break
      end
      local candidate = look_at(turn.company)
      if is_below_its_limits(candidate) then
        if lifted or candidate.held < share(candidate.weight) then
          serve(queue, turn, candidate)
        else
          some_are_held_back = true
        end
      end
    end
  end
  if count < batch and not lifted and not some_are_held_back then
    for _, queue in ipairs(queues) do
      pass_idle_places(queue)
    end
  end
  return some_are_held_back
end

-- Read what was submitted of the jobs whose turns were laid out; answers the lines of those that have lost something.
local function read_jobs()
  local broken = {}
  for company, candidate in pairs(known) do
    candidate.jobs, candidate.handed = read('HMGET', key('jobs', company), candidate.ids), 0
    for _, told in ipairs(candidate.jobs) do
      if what_is_lost(told) then
        broken[company] = true
      end
    end
  end
  return broken
end

local function bury_heads(line)
  local found, ids = redis.call('ZRANGE', line.name, 0, LOOK_AHEAD + batch, 'WITHSCORES'), {}
  for place = 1, #found, 2 do
    table.insert(ids, id_in_line(found[place]))
  end
  for place, told in ipairs(read('HMGET', key('jobs', line.company), ids)) do
    local member, why = found[2 * place - 1], what_is_lost(told)
    if why and #lost < MOST_LOST then
      redis.call('ZREM', line.name, member)
      bury(line.company .. ':' .. ids[place], why, moment, lifetime, {
        type = type_in_line(member), queue = line.queue, priority = found[2 * place],
        run_after = run_after_in_line(member),
      })
    end
  end
  write_all()
  look_for_end_of_line(line.company, line.queue)
  weigh(line.company)
end

-- Whole rounds are taken from every place of a queue before numbers become too large to be exact; nobody can tell.
local function rebase(queue, reached)
  local rounds = reached - reached % ROUND
  for _, places in ipairs({ key('turns', queue), key('idle', queue), key('resting', queue) }) do
    for _, company in ipairs(redis.call('ZRANGE', places, 0, -1)) do
      redis.call('ZINCRBY', places, whole(-rounds), company)
    end
  end
  return reached - rounds
end

local claim, answer = token .. ' ' .. worker .. ' ' .. whole(moment), {}

local function put_down_jobs()
  local claims, names = {}, {}
  for place, line in ipairs(taken) do
    local candidate = known[line.company]
    candidate.handed = candidate.handed + 1
    local name = line.company .. ':' .. candidate.ids[candidate.handed]
    names[place] = name
    claims[2 * place - 1], claims[2 * place] = name, claim
    answer[#answer + 1], answer[#answer + 2] = name, candidate.jobs[candidate.handed]
    tell_change(name)
  end
  write('HSET', key('processing'), claims)
  write('SADD', key('hands', worker), names)
  for _, line in pairs(lines) do
    write('ZREM', line.name, line.taken)
  end
  for company, candidate in pairs(known) do
    write('SADD', key('held', company), candidate.ids)
  end
end

local function put_down_places(queue)
  local rotation, moved, ended, idle = rotations[queue], {}, {}, {}
  for company, place in pairs(rotation.moved) do
    moved[#moved + 1], moved[#moved + 2] = whole(place), company
  end
  for company, place in pairs(rotation.ended) do
    ended[#ended + 1] = company
    idle[#idle + 1], idle[#idle + 2] = whole(place), company
  end
  write('ZADD', key('turns', queue), moved)
  write('ZREM', key('turns', queue), ended)
  write('ZADD', key('idle', queue), idle)
  for _, company in ipairs(ended) do
    close_line(company, queue)
    weigh(company)
  end
  local reached = rotation.reached >= FAR and rebase(queue, rotation.reached) or rotation.reached
  if rotation.is_known and reached ~= rotation.began then
    redis.call('HSET', key('rotations'), queue, whole(reached))
  end
end

local function put_down_limits()
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
end

local found = read('HMGET', key('rotations'), queues)
for place, reached in ipairs(found) do
  redis.call('ZREMRANGEBYSCORE', key('idle', queues[place]), '-inf', whole(reached or 0))
end

local lifted, is_over = false, false
repeat
  local share, before, are_held_back, broken = shares(), count, nil, nil
  repeat
    are_held_back, found = lay_out_turns(share, lifted, found), nil
    broken = read_jobs()
    if next(broken) then
      count = before
      for _, line in pairs(lines) do
        if broken[line.company] then
          bury_heads(line)
        end
      end
    end
  until not next(broken) or #lost >= MOST_LOST
  if next(broken) then  -- the rest is the next claim's
    break
  end
  put_down_jobs()
  for _, queue in ipairs(queues) do
    put_down_places(queue)
  end
  put_down_limits()
  is_over = lifted or count == batch or not are_held_back
  lifted = count == before  -- or else it is counted again: those who ran out leave others what they do not want
until is_over

if count > 0 then
  redis.call('SADD', key('workers'), worker)
end
local again
if count < batch then
  again = redis.call('ZRANGEBYSCORE', key('rests'), '(' .. whole(moment), '(+inf', 'WITHSCORES', 'LIMIT', 0, 1)[2]
end
return { answer, lost, again and whole(tonumber(again)) or false, whole(moment) }
