-- Decides on one call under any number of limits: all of them count it, or none. The crate `limits` makes the same decisions, in
-- nanoseconds; tests/it/scripts.rs compares both.
--
-- KEYS: one state per limit and key of the call, all in one hash slot.
-- ARGV[1..4]: the operation, and three numbers:
--   `reserve`, maximum wait, pause, 0: takes the earliest slot within the maximum wait, at least `pause` from now;
--   `peek`, 0, pause, 0: finds the earliest slot;
--   `count`, tolerance for times in the future, pause, time of the calls (-1: now): counts reported calls, and finds the earliest slot of
--     one more request;
-- then for each limit its kind, the number of requests, and
--   `pace` (token bucket): requests of the rate, microseconds of the rate (in lowest terms), burst; or
--   `window`: limit, microseconds of the window (aligned to the clock), 0.
-- All numbers are whole and below 2^53; times are in microseconds.
-- Returns { outcome, now, slot, index of the binding limit, time until a retry }, then for each limit the remaining requests, when one more
-- is available, and when nothing is used any more.

local floor, max, min = math.floor, math.max, math.min
local ROUNDS = 64
local BOOKINGS_MAX = 256
local COUNT_MAX = 4503599627370496
-- Maximum wait after a change of a rate: 35 years.
local DEBT_MAX = 1125899906842624

local time = redis.call('TIME')
local now = tonumber(time[1]) * 1000000 + tonumber(time[2])
local op = ARGV[1]
local bound, pause, reported_at = tonumber(ARGV[2]), tonumber(ARGV[3]), tonumber(ARGV[4])

-- A usage is { x, y, last }, where `last` is the latest slot. For a pace, x + y/a is the theoretical arrival time; for a window, x is its start
-- and y its count. If there are gaps between future slots, `before` is the usage before them, and `list` contains the slots with their numbers
-- of requests. From `sealed` on, slots without gaps between them are not listed.

-- The earliest slot at or after `from` for n requests, after all slots in `usage`.
local function earliest_after(it, usage, n, from)
  from = max(from, usage.last)
  if it.kind == 'pace' then
    local ahead = it.b * (it.c - n)
    local at = usage.x - floor(ahead / it.a)
    if usage.y > ahead % it.a then at = at + 1 end
    return max(from, at)
  end
  from = max(from, usage.x)
  local ends = usage.x + it.b
  if usage.y == 0 or usage.y + n <= it.a or from >= ends then return from end
  return ends
end

-- The larger of theoretical arrival time and `at`. Rounding up to a whole microsecond does not count as idle time.
local function base(usage, at)
  local rest = 0
  if usage.y > 0 then rest = 1 end
  if at - usage.x - 1 >= rest then return at, 0 end
  return usage.x, usage.y
end

-- Counts n requests at `at`.
local function charge(it, usage, n, at)
  if it.kind == 'window' then
    if usage.y == 0 or at >= usage.x + it.b then usage.x, usage.y = at - at % it.b, 0 end
    usage.y = min(usage.y + n, COUNT_MAX)
    return
  end
  local x, y = base(usage, at)
  local parts = y + it.b * n
  usage.x, usage.y = x + floor(parts / it.a), parts % it.a
end

local function take_last(it, usage, booking)
  charge(it, usage, booking.n, booking.at)
  usage.last = booking.at
end

local function copy(usage)
  return { x = usage.x, y = usage.y, last = usage.last }
end

-- Whether both usages lead to the same decisions from `at` on.
local function is_equivalent(it, one, other, at)
  if it.kind == 'pace' then
    local x, y = base(one, at)
    local other_x, other_y = base(other, at)
    return x == other_x and y == other_y
  end
  local is_over = one.y == 0 or one.x + it.b <= at
  if is_over ~= (other.y == 0 or other.x + it.b <= at) then return false end
  return is_over or (one.x == other.x and one.y == other.y)
end

-- Index of the first booking, from `first` on, that would become inadmissible if n requests were made at `at`.
local function conflict(it, usage, n, at, first)
  local with, without = copy(usage), copy(usage)
  take_last(it, with, { at = at, n = n })
  for i = first, #it.list do
    local booking = it.list[i]
    if is_equivalent(it, with, without, booking.at) then return end
    if earliest_after(it, with, booking.n, booking.at) > booking.at then return i end
    take_last(it, with, booking)
    take_last(it, without, booking)
  end
  if it.sealed and not is_equivalent(it, with, without, it.sealed) then return #it.list + 1 end
end

-- The earliest slot at or after `from` for n requests in a gap before a booking, up to `latest`.
local function gap(it, n, from, latest)
  if not it.before then return end
  local usage, i = copy(it.before), 1
  while true do
    local booking = it.list[i]
    local ends = it.sealed
    if booking then ends = booking.at end
    local at = earliest_after(it, usage, n, from)
    if not ends or (latest and at > latest) then return end
    local skipped = i
    if at <= ends then
      skipped = conflict(it, usage, n, at, i)
      if not skipped then return at end
    end
    if skipped > #it.list then return end
    for j = i, skipped do take_last(it, usage, it.list[j]) end
    i = skipped + 1
  end
end

local function earliest(it, n, from, latest)
  return gap(it, n, from, latest) or earliest_after(it, it.usage, n, from)
end

-- Removes bookings up to `at`: no gap before them can be used.
local function expire(it, at)
  if not it.before then return end
  while it.list[1] and it.list[1].at <= at do take_last(it, it.before, table.remove(it.list, 1)) end
  if not it.list[1] and (not it.sealed or it.sealed <= at) then it.before, it.sealed = nil, nil end
end

-- Recomputes the usage after all bookings, unless some are not listed.
local function recompute(it)
  if it.sealed then return end
  it.usage = copy(it.before)
  for _, booking in ipairs(it.list) do take_last(it, it.usage, booking) end
end

-- Whether n requests at `at`, after all other slots, leave a gap for another request. If so, and with `stores`, stores the booking.
local function leaves_gap(it, n, at, stores)
  if earliest_after(it, it.usage, 1, now) >= at then return false end
  local was = { before = it.before, list = it.list, sealed = it.sealed }
  it.before, it.list, it.sealed = copy(it.usage), { { at = at, n = n } }, nil
  local has_gap = gap(it, 1, now) ~= nil
  if not (stores and has_gap) then it.before, it.list, it.sealed = was.before, was.list, was.sealed end
  return has_gap
end

-- When n requests at `at` can be booked: now, or when an entry becomes free.
local function bookable_at(it, n, at)
  if at <= now or not it.before then return now end
  local is_last = at >= it.usage.last
  local is_behind_sealed = it.sealed and is_last
  if at <= it.before.last or (#it.list < BOOKINGS_MAX and not is_behind_sealed) then return now end
  for _, booking in ipairs(it.list) do
    if booking.at == at then return now end
  end
  if is_last and not leaves_gap(it, n, at) then return now end
  if it.list[1] and not is_behind_sealed then return it.list[1].at end
  return it.usage.last
end

-- Takes a slot that `earliest` returned.
local function take(it, n, at)
  local booking = { at = at, n = n }
  if not it.before then
    if at > now then leaves_gap(it, n, at, true) end
    return take_last(it, it.usage, booking)
  end
  local is_last, index = at >= it.usage.last, 1
  while it.list[index] and it.list[index].at < at do index = index + 1 end
  if at <= max(now, it.before.last) then
    take_last(it, it.before, booking)
  elseif it.list[index] and it.list[index].at == at then
    it.list[index].n = it.list[index].n + n
  elseif is_last and (it.sealed or #it.list == BOOKINGS_MAX) then
    it.sealed = min(it.sealed or at, at)
  else
    table.insert(it.list, index, booking)
  end
  if is_last then take_last(it, it.usage, booking) else recompute(it) end
  -- Bookings before the first gap are no longer needed.
  expire(it, gap(it, 1, now) or math.huge)
end

-- Counts n reported requests now. They empty a bucket, but do not overdraw it.
local function charge_usage(it, usage, n)
  if it.kind == 'window' then return charge(it, usage, min(n, it.max), now) end
  local x, y = usage.x, usage.y
  charge(it, usage, min(n, floor(COUNT_MAX / it.b)), now)
  local parts = it.b * it.c
  local empty_x, empty_y = max(now, usage.last) + floor(parts / it.a), parts % it.a
  if usage.x > empty_x or (usage.x == empty_x and usage.y > empty_y) then usage.x, usage.y = empty_x, empty_y end
  if usage.x < x or (usage.x == x and usage.y < y) then usage.x, usage.y = x, y end
end

-- Counts n reported requests. Bookings keep their slots.
local function charge_reported(it, n)
  expire(it, now)
  if not it.before then return charge_usage(it, it.usage, n) end
  charge_usage(it, it.before, n)
  if it.sealed then charge_usage(it, it.usage, n) else recompute(it) end
end

-- Converts a usage under another kind, window or rate: the number of used requests is kept.
local function carry_over(it, usage, kind, a, b)
  if kind == it.kind and b == it.b and (a == it.a or kind == 'window') then return end
  if kind == 'pace' and it.kind == 'pace' then
    local debt = usage.x - now
    if usage.y > 0 then debt = debt + 1 end
    if debt > 0 then usage.x, usage.y = now + min(math.ceil(debt * (it.b * a) / (it.a * b)) + 1, DEBT_MAX), 0 end
    if debt <= 0 then usage.y = 0 end
    return
  end
  local requests = 0
  if kind == 'pace' then
    requests = math.ceil(((usage.x - now) * a + usage.y) / b)
  elseif usage.x + b > now then
    requests = usage.y
  end
  usage.x, usage.y = 0, 0
  if requests > 0 then charge_usage(it, usage, requests) end
end

local function load(it, state)
  local fields = {}
  for field in string.gmatch(state, '%S+') do fields[#fields + 1] = field end
  local number = function(i) return tonumber(fields[i]) end
  local usage = function(i) return { x = number(i), y = number(i + 1), last = number(i + 2) } end
  it.usage = usage(2)
  carry_over(it, it.usage, fields[1], number(5), number(6))
  if not fields[7] then return end
  it.before, it.sealed = usage(7), number(10)
  if it.sealed == 0 then it.sealed = nil end
  carry_over(it, it.before, fields[1], number(5), number(6))
  for i = 11, #fields, 2 do table.insert(it.list, { at = number(i), n = number(i + 1) }) end
  recompute(it)
  expire(it, now)
end

-- When nothing is used any more.
local function free_at(it)
  local usage = it.usage
  if it.kind == 'window' then
    if usage.y == 0 then return now end
    return max(now, usage.last, usage.x + it.b)
  end
  local ends = usage.x
  if usage.y > 0 then ends = ends + 1 end
  return max(now, usage.last, ends)
end

-- Format: kind, usage, a, b; and with bookings the usage before them, `sealed` or 0, and each slot with its number of requests.
local function save(it)
  local usage = it.usage
  local state = { string.format('%s %.0f %.0f %.0f %.0f %.0f', it.kind, usage.x, usage.y, usage.last, it.a, it.b) }
  if it.before then
    local before = it.before
    table.insert(state, string.format('%.0f %.0f %.0f %.0f', before.x, before.y, before.last, it.sealed or 0))
    for _, booking in ipairs(it.list) do table.insert(state, string.format('%.0f %.0f', booking.at, booking.n)) end
  end
  local ttl = floor((free_at(it) - now) / 1000) + 2
  redis.call('SET', it.key, table.concat(state, ' '), 'PX', string.format('%.0f', ttl))
end

-- How long a call affects decisions.
local function lookback(it)
  if it.kind == 'window' then return it.b end
  return floor((it.b * it.c + it.a - 1) / it.a)
end

-- The remaining requests, and when one more is available.
local function remaining(it)
  local fits, too_many = 0, it.max + 1
  while fits + 1 < too_many do
    local n = floor((fits + too_many) / 2)
    if earliest(it, n, now, now) <= now then fits = n else too_many = n end
  end
  if fits == it.max then return fits, now end
  return fits, earliest(it, fits + 1, now)
end

local limits = {}
for i, key in ipairs(KEYS) do
  local at = 5 + (i - 1) * 5
  local it = {
    key = key, kind = ARGV[at], n = tonumber(ARGV[at + 1]),
    a = tonumber(ARGV[at + 2]), b = tonumber(ARGV[at + 3]), c = tonumber(ARGV[at + 4]),
    usage = { x = 0, y = 0, last = 0 }, list = {},
  }
  it.max = it.a
  if it.kind == 'pace' then it.max = it.c end
  if it.n > it.max and op ~= 'count' then return { 'many', now, 0, i, 0 } end
  local state = redis.call('GET', key)
  if state then load(it, state) end
  limits[i] = it
end

local counted = 'old'
if op == 'count' then
  if reported_at > now + bound then return { 'early', now, 0, 0, 0 } end
  if reported_at < 0 or reported_at > now then reported_at = now end
  for _, it in ipairs(limits) do
    if reported_at + lookback(it) > now then
      charge_reported(it, it.n)
      save(it)
      counted = 'counted'
    end
    it.n = 1
  end
end

local at, binding = now + pause, 0
for round = 0, 2 * ROUNDS - 1 do
  local before = at
  for i, it in ipairs(limits) do
    local from = at
    if round == ROUNDS then from = max(from, it.usage.last) end
    local found = earliest(it, it.n, from)
    if found > at then at, binding = found, i end
  end
  if at == before or #limits == 1 then break end
end

local outcome, retry_after = 'now', 0
if at > now then outcome = 'at' end
if op == 'reserve' then
  if at - now > bound then
    outcome, retry_after = 'wait', at - now - bound
  else
    for i, it in ipairs(limits) do
      retry_after = bookable_at(it, it.n, at) - now
      if retry_after > 0 then
        outcome, binding = 'wait', i
        break
      end
    end
  end
  if outcome ~= 'wait' then
    for _, it in ipairs(limits) do
      take(it, it.n, at)
      save(it)
    end
  end
elseif op == 'count' then
  outcome = counted
end

local reply = { outcome, now, at, binding, retry_after }
for _, it in ipairs(limits) do
  local requests, more_at = remaining(it)
  for _, number in ipairs({ requests, more_at, free_at(it) }) do table.insert(reply, number) end
end
return reply
