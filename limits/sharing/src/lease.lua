-- The ledger of a group: processes one request of one member. tests/it/model/mod.rs is its model in Rust, with a proof.
--
-- KEYS[1]: a hash with the field `group`, and a field `m:NAME` for each member, all packed. Names in these tables are a stored format.
-- In a member's record, `seen` and `heard` are the time of its last request by the server's clock and by the ledger's clock. `applied` is
-- the grant that it uses, and `told` the grant in the last reply. `wants` has { demand, share in use } for each limit.
-- ARGV: refresh, ttl, timeout, forget_after, members_max; member, instance, number, applied, leaves (0 or 1); then for each limit its name,
-- share in use, fallback share, demand. Times are in microseconds, shares in millionths; all numbers are whole and below 2^53.
-- Returns { status, now, run, is_learning, members }, then for each limit the lease, the fallback share, the sum of all shares, and the share
-- reserved for unknown members.

local WHOLE = 1000000
local key, floor, min, max = KEYS[1], math.floor, math.min, math.max
local number_at = function(i) return tonumber(ARGV[i]) end
local refresh, ttl, timeout, forget_after, members_max =
  number_at(1), number_at(2), number_at(3), number_at(4), number_at(5)
local name, instance, number, applied, leaves =
  ARGV[6], number_at(7), number_at(8), number_at(9), ARGV[10] == '1'

local reserved_for = ttl + 2 * refresh
local gap_max = refresh + floor(refresh / 2)
local silence_max = 4 * refresh
local fallback_after = floor((reserved_for + silence_max + timeout) / 49) * 50 + 50
local expires_after = forget_after + floor(forget_after / 8)
local guaranteed_share = 0
if members_max > 0 then guaranteed_share = floor(WHOLE / members_max) end
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
-- New settings take effect once no known or unknown member can use the old ones.
if group and group.terms ~= terms then
  local own, is_unused = members[name], next(group.unknown) == nil
  if own and own.instance < instance then
    local none = { number = 0, at = 0, generation = 0, shares = {} }
    own = {
      instance = instance, number = 0, seen = 0, heard = 0, has_left = true,
      applied = none, told = none, wants = {},
    }
    members[name] = own
    redis.call('HSET', key, 'm:' .. name, cmsgpack.pack(own))
  end
  for _, record in pairs(members) do is_unused = is_unused and record.has_left end
  if not is_unused then return { 'terms', now, run, 0, 0 } end
  redis.call('DEL', key)
  group, members = nil, {}
end
if not group then
  group = {
    terms = terms, run = run, wall = now, clock = 0, generation = now,
    learns_until = reserved_for, has_lost = false, unknown = {},
  }
end

-- Lease and fallback share in a grant.
local function share(grant, limit)
  local found = grant.shares[limit]
  if found then return found[1], found[2] end
  return 0, 0
end

-- The larger fallback share of a member's two grants.
local function fallback_of(record, limit)
  local _, applied_share = share(record.applied, limit)
  local _, told_share = share(record.told, limit)
  return max(applied_share, told_share)
end

local function uses_limit(record, limit)
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
  group.learns_until = group.clock + reserved_for
  group.has_lost = false
end

-- Some grants are unknown here. Reserves each limit minus the known fallback shares, and restarts the expiry of all members.
local function record_loss()
  group.has_lost = true
  local fallbacks = {}
  for who, record in pairs(members) do
    record.seen = now
    changed[who] = true
    for _, wants in pairs(record.wants) do wants[2] = 0 end
    for limit in pairs(limits_of(record)) do
      fallbacks[limit] = (fallbacks[limit] or 0) + fallback_of(record, limit)
    end
  end
  for limit, sum in pairs(fallbacks) do
    group.unknown[limit] = { max(0, WHOLE - sum), now }
  end
end

-- The ledger's clock never goes back and advances by at most `gap_max` per request.
local function advance_clock()
  local gap = max(0, now - group.wall)
  group.clock = group.clock + min(gap, gap_max)
  local jumps = now < group.wall or gap > gap_max
  group.wall = now
  if group.run ~= run then
    group.run = run
    begin_generation()
    record_loss()
  elseif jumps then
    begin_generation()
  end
end

local function expire_members()
  for who, record in pairs(members) do
    local is_expired
    if record.has_left then
      is_expired = group.clock - record.heard > reserved_for
    else
      is_expired = max(0, now - record.seen) > expires_after
    end
    if is_expired then
      members[who] = nil
      changed[who] = true
    end
  end
  for limit, reserve in pairs(group.unknown) do
    if max(0, now - reserve[2]) > expires_after then group.unknown[limit] = nil end
  end
end

-- The fallback share of an ended process may be in use by an unknown member if the process sent nothing since a loss.
local function release(record)
  for limit in pairs(limits_of(record)) do
    local reserve = group.unknown[limit]
    if reserve and record.seen <= reserve[2] then reserve[1] = reserve[1] + fallback_of(record, limit) end
  end
end

-- Removes the member's record and returns it, unless it is that of a previous process.
local function remove_record()
  local known = members[name]
  if not known then return nil end
  members[name] = nil
  changed[name] = true
  if known.instance == instance then return known end
  release(known)
  return nil
end

local requests = {}
for i = 11, #ARGV, 4 do
  requests[#requests + 1] = { limit = ARGV[i], in_use = number_at(i + 1), fallback = number_at(i + 2), demand = number_at(i + 3) }
end

local function empty_grant() return { number = 0, at = 0, generation = 0, shares = {} } end

-- Stores the request. If the member uses a grant that is unknown here, data was lost.
local function record_request()
  local known = remove_record()
  if known and (known.has_left or applied == 0) then known = nil end
  local is_known, applied_grant = true, nil
  if known and known.told.number == applied then
    applied_grant = known.told
  elseif known and known.applied.number == applied then
    applied_grant = known.applied
  else
    is_known = applied == 0
    applied_grant = { number = applied, at = group.clock, generation = 0, shares = {} }
    for _, request in ipairs(requests) do
      if is_known then
        applied_grant.shares[request.limit] = { guaranteed_share, guaranteed_share }
      else
        applied_grant.shares[request.limit] = { request.in_use, request.fallback }
      end
    end
  end
  local wants = {}
  for _, request in ipairs(requests) do wants[request.limit] = { request.demand, request.in_use } end
  members[name] = {
    instance = instance, number = number, seen = now, heard = group.clock, has_left = false,
    applied = applied_grant, told = empty_grant(), wants = wants,
  }
  changed[name] = true
  if is_known then
    if is_learning() and group.has_lost then
      for _, request in ipairs(requests) do
        if not group.unknown[request.limit] then
          local sum = 0
          for _, record in pairs(members) do sum = sum + fallback_of(record, request.limit) end
          group.unknown[request.limit] = { max(0, WHOLE - sum), now }
        end
      end
    end
    return
  end
  if not is_learning() then begin_generation() end
  record_loss()
end

-- The maximum share of a limit that a member may use during a lease that is granted now.
local function reserved_of(record, limit)
  local function of(grant)
    local lease, fallback = share(grant, limit)
    local age = group.clock - grant.at
    if age >= reserved_for then lease = min(lease, fallback) end
    if grant.generation ~= group.generation or age >= silence_max then return max(lease, fallback) end
    return lease
  end
  return max(of(record.applied), of(record.told))
end

-- Max-min fair share of one of these demands. Unused capacity is divided equally.
local function fair(capacity, demand, demands)
  table.sort(demands)
  local rest, count = capacity, #demands
  for _, other in ipairs(demands) do
    local level = floor(rest / count)
    if other > level then return min(demand, level) end
    rest = rest - other
    count = count - 1
  end
  return demand + floor(rest / #demands)
end

local function grant(request)
  local limit, count = request.limit, 1
  local reserved, silent_reserved, fallbacks, total = 0, 0, 0, request.in_use
  local demands = { request.demand }
  for who, record in pairs(members) do
    if who ~= name and uses_limit(record, limit) then
      local reserve = reserved_of(record, limit)
      local silent = group.clock - record.heard
      local wants = record.wants[limit] or { 0, 0 }
      count = count + 1
      reserved = reserved + reserve
      fallbacks = fallbacks + fallback_of(record, limit)
      if silent < reserved_for then demands[#demands + 1] = wants[1] else silent_reserved = silent_reserved + reserve end
      if silent < fallback_after then total = total + min(wants[2], reserve) else total = total + reserve end
    end
  end
  local minimum = floor(WHOLE / (50 * count))
  for i, demand in ipairs(demands) do demands[i] = max(demand, minimum) end
  local unknown = max(0, members_max - count) * guaranteed_share
  if members_max == 0 and group.unknown[limit] then unknown = group.unknown[limit][1] end
  local free = max(0, WHOLE - (unknown + reserved))
  local lease = min(request.in_use, free)
  if not is_learning() then
    local capacity = max(0, WHOLE - (unknown + silent_reserved))
    lease = min(fair(capacity, max(request.demand, minimum), demands), free)
  end
  local fallback = guaranteed_share
  if members_max == 0 then
    fallback = request.fallback
    if not is_learning() then
      fallback = min(floor(WHOLE / count), max(0, WHOLE - (unknown + fallbacks)))
    end
  end
  return lease, fallback, total, unknown
end

local function respond()
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
    local left = remove_record()
    if left then release(left) end
    members[name] = {
      instance = instance, number = number, seen = now, heard = group.clock, has_left = true,
      applied = empty_grant(), told = empty_grant(), wants = {},
    }
    changed[name] = true
    if is_member then count = count - 1 end
    return { 'granted', now, run, is_learning() and 1 or 0, count }
  end
  record_request()
  if not is_member then count = count + 1 end
  local told = { number = number, at = group.clock, generation = group.generation, shares = {} }
  local shares = {}
  for _, request in ipairs(requests) do
    local lease, fallback, total, unknown = grant(request)
    told.shares[request.limit] = { lease, fallback }
    for _, value in ipairs({ lease, fallback, total, unknown }) do shares[#shares + 1] = value end
  end
  members[name].told = told
  local all = { 'granted', now, run, is_learning() and 1 or 0, count }
  for _, value in ipairs(shares) do all[#all + 1] = value end
  return all
end

advance_clock()
expire_members()
local reply = respond()
redis.call('HSET', key, 'group', cmsgpack.pack(group))
for who in pairs(changed) do
  if members[who] then
    redis.call('HSET', key, 'm:' .. who, cmsgpack.pack(members[who]))
  else
    redis.call('HDEL', key, 'm:' .. who)
  end
end
redis.call('PEXPIRE', key, floor(expires_after / 1000) + 1000)
return reply
