-- A group's ledger: one question of one member. tests/model/mod.rs is the same in Rust, and says what holds and why.
--
-- KEYS[1] is a hash: `group`, and a field `m:NAME` for each member, all packed.
-- ARGV: refresh, ttl, timeout, forget_after, members_max; member, instance, number, applied, leaves (0 or 1); then
-- for each limit its name, held, safe, demand. Times are microseconds, shares millionths; all are whole and below 2^53.
-- Answers: { status, now, run, is_learning, members, then for each limit lease, safe, sum, unknown }.

local WHOLE = 1000000
local key, floor, min, max = KEYS[1], math.floor, math.min, math.max
local number_at = function(i) return tonumber(ARGV[i]) end
local refresh, ttl, timeout, forget_after, members_max =
  number_at(1), number_at(2), number_at(3), number_at(4), number_at(5)
local name, instance, number, applied, leaves =
  ARGV[6], number_at(7), number_at(8), number_at(9), ARGV[10] == '1'

local held_for = ttl + 2 * refresh
local gap_max = refresh + floor(refresh / 2)
local silence = 4 * refresh
local safe_after = floor((held_for + silence + timeout) / 49) * 50 + 50
local forget_at = forget_after + floor(forget_after / 8)
local floor_share = 0
if members_max > 0 then floor_share = floor(WHOLE / members_max) end
local terms = table.concat(ARGV, ' ', 1, 5)

local time = redis.call('TIME')
local now = tonumber(time[1]) * 1000000 + tonumber(time[2])
local run = string.match(redis.call('INFO', 'server'), 'run_id:(%x+)')

local group, members, changed = nil, {}, {}
local fields = redis.call('HGETALL', key)
for i = 1, #fields, 2 do
  if fields[i] == 'group' then
    group = cmsgpack.unpack(fields[i + 1])
  else
    members[string.sub(fields[i], 3)] = cmsgpack.unpack(fields[i + 1])
  end
end
if group and group.terms ~= terms then
  local mine, is_over = members[name], next(group.unknown) == nil
  if mine and mine.instance < instance then
    local none = { number = 0, at = 0, generation = 0, shares = {} }
    mine = {
      instance = instance, number = 0, seen = 0, heard = 0, has_left = true,
      applied = none, told = none, wants = {},
    }
    members[name] = mine
    redis.call('HSET', key, 'm:' .. name, cmsgpack.pack(mine))
  end
  for _, record in pairs(members) do is_over = is_over and record.has_left end
  if not is_over then return { 'terms', now, run, 0, 0 } end
  redis.call('DEL', key)
  group, members = nil, {}
end
if not group then
  group = {
    terms = terms, run = run, wall = now, clock = 0, generation = now,
    learns_until = held_for, has_lost = false, unknown = {},
  }
end

local function share(grant, limit)
  local found = grant.shares[limit]
  if found then return found[1], found[2] end
  return 0, 0
end

local function safe_of(record, limit)
  local _, one = share(record.applied, limit)
  local _, other = share(record.told, limit)
  return max(one, other)
end

local function has(record, limit)
  return record.wants[limit] or record.applied.shares[limit] or record.told.shares[limit]
end

local function limits_of(record)
  local all = {}
  for limit in pairs(record.wants) do all[limit] = true end
  for limit in pairs(record.applied.shares) do all[limit] = true end
  for limit in pairs(record.told.shares) do all[limit] = true end
  return all
end

local function is_learning() return group.clock < group.learns_until end

local function begin_generation()
  group.generation = max(group.generation, now) + 1
  group.learns_until = group.clock + held_for
  group.has_lost = false
end

local function lose()
  group.has_lost = true
  local safe = {}
  for who, record in pairs(members) do
    record.seen = now
    changed[who] = true
    for _, wants in pairs(record.wants) do wants[2] = 0 end
    for limit in pairs(limits_of(record)) do
      safe[limit] = (safe[limit] or 0) + safe_of(record, limit)
    end
  end
  for limit, sum in pairs(safe) do
    group.unknown[limit] = { max(0, WHOLE - sum), now }
  end
end

local function pass()
  local gap = max(0, now - group.wall)
  group.clock = group.clock + min(gap, gap_max)
  local leaps = now < group.wall or gap > gap_max
  group.wall = now
  if group.run ~= run then
    group.run = run
    begin_generation()
    lose()
  elseif leaps then
    begin_generation()
  end
end

local function forget()
  for who, record in pairs(members) do
    local is_over
    if record.has_left then
      is_over = group.clock - record.heard > held_for
    else
      is_over = max(0, now - record.seen) > forget_at
    end
    if is_over then
      members[who] = nil
      changed[who] = true
    end
  end
  for limit, kept in pairs(group.unknown) do
    if max(0, now - kept[2]) > forget_at then group.unknown[limit] = nil end
  end
end

local function release(record)
  for limit in pairs(limits_of(record)) do
    local kept = group.unknown[limit]
    if kept and record.seen <= kept[2] then kept[1] = kept[1] + safe_of(record, limit) end
  end
end

local function take()
  local known = members[name]
  if not known then return nil end
  members[name] = nil
  changed[name] = true
  if known.instance == instance then return known end
  release(known)
  return nil
end

local asks = {}
for i = 11, #ARGV, 4 do
  asks[#asks + 1] = { limit = ARGV[i], held = number_at(i + 1), safe = number_at(i + 2), demand = number_at(i + 3) }
end

local function empty_grant() return { number = 0, at = 0, generation = 0, shares = {} } end

local function note()
  local known = take()
  if known and (known.has_left or applied == 0) then known = nil end
  local is_known, goes_by = true, nil
  if known and known.told.number == applied then
    goes_by = known.told
  elseif known and known.applied.number == applied then
    goes_by = known.applied
  else
    is_known = applied == 0
    goes_by = { number = applied, at = group.clock, generation = 0, shares = {} }
    for _, ask in ipairs(asks) do
      if is_known then
        goes_by.shares[ask.limit] = { floor_share, floor_share }
      else
        goes_by.shares[ask.limit] = { ask.held, ask.safe }
      end
    end
  end
  local wants = {}
  for _, ask in ipairs(asks) do wants[ask.limit] = { ask.demand, ask.held } end
  members[name] = {
    instance = instance, number = number, seen = now, heard = group.clock, has_left = false,
    applied = goes_by, told = empty_grant(), wants = wants,
  }
  changed[name] = true
  if is_known then
    if is_learning() and group.has_lost then
      for _, ask in ipairs(asks) do
        if not group.unknown[ask.limit] then
          local safe = 0
          for _, record in pairs(members) do safe = safe + safe_of(record, ask.limit) end
          group.unknown[ask.limit] = { max(0, WHOLE - safe), now }
        end
      end
    end
    return
  end
  if not is_learning() then begin_generation() end
  lose()
end

local function held_of(record, limit)
  local function of(grant)
    local lease, safe = share(grant, limit)
    local age = group.clock - grant.at
    local leased = lease
    if age >= held_for then leased = min(lease, safe) end
    if grant.generation ~= group.generation or age >= silence then return max(leased, safe) end
    return leased
  end
  return max(of(record.applied), of(record.told))
end

local function fair(capacity, demand, demands)
  table.sort(demands)
  local left, count = capacity, #demands
  for _, asked in ipairs(demands) do
    local level = floor(left / count)
    if asked > level then return min(demand, level) end
    left = left - asked
    count = count - 1
  end
  return demand + floor(left / #demands)
end

local function grant(ask)
  local limit, count = ask.limit, 1
  local held, gone, safe, sum = 0, 0, 0, ask.held
  local demands = { ask.demand }
  for who, record in pairs(members) do
    if who ~= name and has(record, limit) then
      local holds = held_of(record, limit)
      local silent = group.clock - record.heard
      local wants = record.wants[limit] or { 0, 0 }
      count = count + 1
      held = held + holds
      safe = safe + safe_of(record, limit)
      if silent < held_for then demands[#demands + 1] = wants[1] else gone = gone + holds end
      if silent < safe_after then sum = sum + min(wants[2], holds) else sum = sum + holds end
    end
  end
  local least = floor(WHOLE / (50 * count))
  for i, demand in ipairs(demands) do demands[i] = max(demand, least) end
  local kept = max(0, members_max - count) * floor_share
  if members_max == 0 and group.unknown[limit] then kept = group.unknown[limit][1] end
  local room = max(0, WHOLE - (kept + held))
  local lease = min(ask.held, room)
  if not is_learning() then
    local capacity = max(0, WHOLE - (kept + gone))
    lease = min(fair(capacity, max(ask.demand, least), demands), room)
  end
  local next_safe = floor_share
  if members_max == 0 then
    next_safe = ask.safe
    if not is_learning() then
      next_safe = min(floor(WHOLE / count), max(0, WHOLE - (kept + safe)))
    end
  end
  return lease, next_safe, sum, kept
end

local function answer()
  local known = members[name]
  if known then
    if instance < known.instance then return { 'replaced', now, run, 0, known.instance } end
    if instance == known.instance and number <= known.number then return { 'stale', now, run, 0, 0 } end
  end
  local is_member = known and not known.has_left
  local count = 0
  for _, record in pairs(members) do
    if not record.has_left then count = count + 1 end
  end
  if not is_member and members_max > 0 and count >= members_max and not leaves then
    return { 'full', now, run, 0, 0 }
  end
  if leaves then
    local gone = take()
    if gone then release(gone) end
    members[name] = {
      instance = instance, number = number, seen = now, heard = group.clock, has_left = true,
      applied = empty_grant(), told = empty_grant(), wants = {},
    }
    changed[name] = true
    if is_member then count = count - 1 end
    return { 'granted', now, run, is_learning() and 1 or 0, count }
  end
  note()
  if not is_member then count = count + 1 end
  local told = { number = number, at = group.clock, generation = group.generation, shares = {} }
  local found = {}
  for _, ask in ipairs(asks) do
    local lease, safe, sum, kept = grant(ask)
    told.shares[ask.limit] = { lease, safe }
    for _, value in ipairs({ lease, safe, sum, kept }) do found[#found + 1] = value end
  end
  members[name].told = told
  local all = { 'granted', now, run, is_learning() and 1 or 0, count }
  for _, value in ipairs(found) do all[#all + 1] = value end
  return all
end

pass()
forget()
local result = answer()
redis.call('HSET', key, 'group', cmsgpack.pack(group))
for who in pairs(changed) do
  if members[who] then
    redis.call('HSET', key, 'm:' .. who, cmsgpack.pack(members[who]))
  else
    redis.call('HDEL', key, 'm:' .. who)
  end
end
redis.call('PEXPIRE', key, floor(forget_at / 1000) + 1000)
return result
