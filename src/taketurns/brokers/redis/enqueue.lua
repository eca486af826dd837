#!lua
-- Create jobs of one company, all or none, each once for its idempotency key, while as many may wait.
-- Safe because every key is looked at before anything is written, and because nobody runs in between. Not run at all
-- when memory is full.
--
-- Jobs are told in one JSON text: [id, queue, type, priority] of each, and where it has any of these, [run_after, delay,
-- key, fingerprint, reserved_at]. What this verb has no use for comes after it, a text for each: see `read_job`.
-- Answers for each job its id where it was there already, its run_after where it has one, or an empty text.

local moment = moment_of(ARGV[1])
local company, key_lifetime, rows = ARGV[2], tonumber(ARGV[3]), cjson.decode(ARGV[4])
local REST = 4

local slug, most, paused = unpack(redis.call('HMGET', key('company', company), 'slug', 'max_queued', 'paused'))
if not slug then
  company = company_named(company)
  if company then
    most, paused = unpack(redis.call('HMGET', key('company', company), 'max_queued', 'paused'))
  end
end
if is_closed(company or ARGV[2]) then
  return { 'closed' }
elseif not company then
  return { 'unknown' }
end

local ids, own, keyed = {}, {}, {}
for place, row in ipairs(rows) do
  ids[place] = row[1]
end
local known, created, answers, conflicts = read('HMGET', key('jobs', company), ids), {}, {}, {}

local function given(value)
  if value ~= cjson.null then
    return value
  end
end

local function earlier_of(place, name, fingerprint)
  if name and not own[name] then
    local id, stored, expires_at = unpack(redis.call('HMGET', key('key', company, name), 'id', 'fingerprint',
      'expires_at'))
    own[name] = { id = ids[place], fingerprint = fingerprint }
    if id and tonumber(expires_at) > moment then
      own[name] = { id = id, fingerprint = stored }
    else
      keyed[place] = name
      return nil
    end
  end
  return name and own[name] or known[place] and { id = ids[place], fingerprint = fingerprint }
end

for place, row in ipairs(rows) do
  local rare = row[5]
  local name, fingerprint
  if rare then
    name, fingerprint = given(rare[3]), rare[4]
  end
  local earlier = (name or known[place]) and earlier_of(place, name, fingerprint)
  if not earlier then
    table.insert(created, place)
    answers[place] = ''
  elseif earlier.fingerprint == fingerprint then
    answers[place] = { earlier.id }
  else
    table.insert(conflicts, place - 1)
  end
end
if #conflicts > 0 then
  return { 'conflict', conflicts }
end
if #created == 0 then
  vouch()
elseif (most or '') ~= '' and queued(company) + #created > tonumber(most) then
  return { 'full', tonumber(most), #created }
end

local created_at, jobs = whole(moment), {}
for _, place in ipairs(created) do
  local id, queue, type, priority, rare = unpack(rows[place])
  local run_after, reserved_at = created_at, 'null'
  if rare then
    local at, delay = given(rare[1]), given(rare[2])
    if at or delay then
      run_after = whole(at or moment + delay)
      answers[place] = run_after
    end
    reserved_at = given(rare[5]) and whole(rare[5]) or 'null'
  end
  jobs[#jobs + 1] = id
  jobs[#jobs + 1] = '[1,0,0,' .. run_after .. ',' .. created_at .. ',' .. reserved_at .. ',' .. ARGV[REST + place]
  if keyed[place] then
    local name = company .. ':' .. keyed[place]
    soon('HSET', key('key', name), 'id', id, 'fingerprint', rare[4], 'expires_at', whole(moment + key_lifetime * 1000))
    soon('PEXPIRE', key('key', name), whole(key_lifetime))
    soon('ZADD', key('keys'), whole(moment + key_lifetime * 1000), name)
  end
  local name, job = company .. ':' .. id, { queue = queue, type = type, priority = priority, run_after = run_after }
  if tonumber(run_after) > moment then
    stand_on_schedule(name, job, run_after)
  else
    stand_in_line(name, job)
  end
  tell_change(name)
end
write('HSET', key('jobs', company), jobs)
join_lines()
return { 'created', company, created_at, answers }
