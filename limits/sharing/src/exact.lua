-- One call under any number of limits: all of them count it, or none. The core crate decides the same, in microseconds.
--
-- KEYS: the state of each limit for its key, all in one slot.
-- ARGV: what is asked, and three numbers:
--   `reserve`, the maximum wait, for how long it must not go, 0: takes the first moment within the maximum wait;
--   `peek`, 0, for how long it must not go, 0: takes nothing;
--   `count`, by how much its time may be ahead, for how long the next must not go, when the calls were made (-1: now): counts them, and
--     says when one more could go;
-- then for each limit its kind, the requests, and
--   `pace`: requests of the rate, microseconds of the rate (in lowest terms), burst; or
--   `window`: limit, microseconds of the window (aligned to the clock), 0.
-- All numbers are whole and below 2^53. Answers: { outcome, now, at, which limit decided, microseconds until it may be asked again }, and
-- for each limit how many could go at once, when one more could, and when nothing of it is used any more.

local floor, max, min = math.floor, math.max, math.min
local ROUNDS = 64
local BOOKINGS_MAX = 256
local COUNT_MAX = 4503599627370496
-- The longest that a pace may have to wait after a change, in microseconds: 35 years.
local DEBT_MAX = 1125899906842624

local time = redis.call('TIME')
local now = tonumber(time[1]) * 1000000 + tonumber(time[2])
local op = ARGV[1]
local bound, pause, made = tonumber(ARGV[2]), tonumber(ARGV[3]), tonumber(ARGV[4])

-- What is used stands at x, y and the latest moment given out. Of a pace, x + y/a is when the next would be due if all were evenly spaced; of a
-- window, x is its start and y its count. Where there is room before moments given out, `before` is what was used before them, and `list`
-- has those moments and how many requests go then; from `sealed` on there are others, with no room between them.

-- The first moment from `from` on at which n can go behind all of what is used.
local function due(it, used, n, from)
  from = max(from, used.last)
  if it.kind == 'pace' then
    local ahead = it.b * (it.c - n)
    local at = used.x - floor(ahead / it.a)
    if used.y > ahead % it.a then at = at + 1 end
    return max(from, at)
  end
  from = max(from, used.x)
  local ends = used.x + it.b
  if used.y == 0 or used.y + n <= it.a or from >= ends then return from end
  return ends
end

-- Where a pace stands for what follows at `at`. Rounding up to a whole microsecond is not a pause.
local function base(used, at)
  local rest = 0
  if used.y > 0 then rest = 1 end
  if at - used.x - 1 >= rest then return at, 0 end
  return used.x, used.y
end

-- Counts n as made at `at`.
local function add(it, used, n, at)
  if it.kind == 'window' then
    if used.y == 0 or at >= used.x + it.b then used.x, used.y = at - at % it.b, 0 end
    used.y = min(used.y + n, COUNT_MAX)
    return
  end
  local x, y = base(used, at)
  local parts = y + it.b * n
  used.x, used.y = x + floor(parts / it.a), parts % it.a
end

local function add_booking(it, used, booking)
  add(it, used, booking.n, booking.at)
  used.last = booking.at
end

local function copy(used)
  return { x = used.x, y = used.y, last = used.last }
end

-- Whether what follows at `at` is the same after both.
local function is_same(it, one, other, at)
  if it.kind == 'pace' then
    local x, y = base(one, at)
    local other_x, other_y = base(other, at)
    return x == other_x and y == other_y
  end
  local is_over = one.y == 0 or one.x + it.b <= at
  if is_over ~= (other.y == 0 or other.x + it.b <= at) then return false end
  return is_over or (one.x == other.x and one.y == other.y)
end

-- Which booking, from `first` on, would not be permitted any more if n went before it.
local function held_up(it, used, n, at, first)
  local with, without = copy(used), copy(used)
  add_booking(it, with, { at = at, n = n })
  for i = first, #it.list do
    local booking = it.list[i]
    if is_same(it, with, without, booking.at) then return end
    if due(it, with, booking.n, booking.at) > booking.at then return i end
    add_booking(it, with, booking)
    add_booking(it, without, booking)
  end
  if it.sealed and not is_same(it, with, without, it.sealed) then return #it.list + 1 end
end

-- The first moment from `from` on before a booking, with room for n; of bookings that are not later than `latest`.
local function gap(it, n, from, latest)
  if not it.before then return end
  local used, i = copy(it.before), 1
  while true do
    local booking = it.list[i]
    local ends = it.sealed
    if booking then ends = booking.at end
    local at = due(it, used, n, from)
    if not ends or (latest and at > latest) then return end
    local passed = i
    if at <= ends then
      passed = held_up(it, used, n, at, i)
      if not passed then return at end
    end
    if passed > #it.list then return end
    for j = i, passed do add_booking(it, used, it.list[j]) end
    i = passed + 1
  end
end

local function earliest(it, n, from, latest)
  return gap(it, n, from, latest) or due(it, it.used, n, from)
end

-- Bookings up to `at` leave no room before them any more.
local function pass(it, at)
  if not it.before then return end
  while it.list[1] and it.list[1].at <= at do add_booking(it, it.before, table.remove(it.list, 1)) end
  if not it.list[1] and (not it.sealed or it.sealed <= at) then it.before, it.sealed = nil, nil end
end

-- What is used after all bookings. What is sealed is as it was.
local function add_up(it)
  if it.sealed then return end
  it.used = copy(it.before)
  for _, booking in ipairs(it.list) do add_booking(it, it.used, booking) end
end

-- Whether n at `at`, behind all others, leave room for one before them; then that is remembered, if it is to be.
local function leaves_room(it, n, at, keeps)
  if due(it, it.used, 1, now) >= at then return false end
  local was = { before = it.before, list = it.list, sealed = it.sealed }
  it.before, it.list, it.sealed = copy(it.used), { { at = at, n = n } }, nil
  local has_room = gap(it, 1, now) ~= nil
  if not (keeps and has_room) then it.before, it.list, it.sealed = was.before, was.list, was.sealed end
  return has_room
end

-- When n at `at` can be remembered: now, or when there is a place for it.
local function remembered_at(it, n, at)
  if at <= now or not it.before then return now end
  local is_last = at >= it.used.last
  local is_behind_sealed = it.sealed and is_last
  if at <= it.before.last or (#it.list < BOOKINGS_MAX and not is_behind_sealed) then return now end
  for _, booking in ipairs(it.list) do
    if booking.at == at then return now end
  end
  if is_last and not leaves_room(it, n, at) then return now end
  if it.list[1] and not is_behind_sealed then return it.list[1].at end
  return it.used.last
end

-- Takes n at a moment that `earliest` gave.
local function take(it, n, at)
  local booking = { at = at, n = n }
  if not it.before then
    if at > now then leaves_room(it, n, at, true) end
    return add_booking(it, it.used, booking)
  end
  local is_last, place = at >= it.used.last, 1
  while it.list[place] and it.list[place].at < at do place = place + 1 end
  if at <= max(now, it.before.last) then
    add_booking(it, it.before, booking)
  elseif it.list[place] and it.list[place].at == at then
    it.list[place].n = it.list[place].n + n
  elseif is_last and (it.sealed or #it.list == BOOKINGS_MAX) then
    it.sealed = min(it.sealed or at, at)
  else
    table.insert(it.list, place, booking)
  end
  if is_last then add_booking(it, it.used, booking) else add_up(it) end
  -- Where not even one can go, nobody can be let go any more.
  pass(it, gap(it, 1, now) or math.huge)
end

-- Counts n as made now, as far as they have an effect: a pace has no burst left at worst.
local function tell_used(it, used, n)
  if it.kind == 'window' then return add(it, used, min(n, it.most), now) end
  local x, y = used.x, used.y
  add(it, used, min(n, floor(COUNT_MAX / it.b)), now)
  local parts = it.b * it.c
  local empty_x, empty_y = max(now, used.last) + floor(parts / it.a), parts % it.a
  if used.x > empty_x or (used.x == empty_x and used.y > empty_y) then used.x, used.y = empty_x, empty_y end
  if used.x < x or (used.x == x and used.y < y) then used.x, used.y = x, y end
end

-- Bookings stay.
local function tell(it, n)
  pass(it, now)
  if not it.before then return tell_used(it, it.used, n) end
  tell_used(it, it.before, n)
  if it.sealed then tell_used(it, it.used, n) else add_up(it) end
end

-- What was used stays used, in requests, where the limit was of another kind, window or rate.
local function carry(it, used, kind, a, b)
  if kind == it.kind and b == it.b and (a == it.a or kind == 'window') then return end
  if kind == 'pace' and it.kind == 'pace' then
    local debt = used.x - now
    if used.y > 0 then debt = debt + 1 end
    if debt > 0 then used.x, used.y = now + min(math.ceil(debt * (it.b * a) / (it.a * b)) + 1, DEBT_MAX), 0 end
    if debt <= 0 then used.y = 0 end
    return
  end
  local requests = 0
  if kind == 'pace' then
    requests = math.ceil(((used.x - now) * a + used.y) / b)
  elseif used.x + b > now then
    requests = used.y
  end
  used.x, used.y = 0, 0
  if requests > 0 then tell_used(it, used, requests) end
end

local function load(it, state)
  local fields = {}
  for field in string.gmatch(state, '%S+') do fields[#fields + 1] = field end
  local number = function(i) return tonumber(fields[i]) end
  local used = function(i) return { x = number(i), y = number(i + 1), last = number(i + 2) } end
  it.used = used(2)
  carry(it, it.used, fields[1], number(5), number(6))
  if not fields[7] then return end
  it.before, it.sealed = used(7), number(10)
  if it.sealed == 0 then it.sealed = nil end
  carry(it, it.before, fields[1], number(5), number(6))
  for i = 11, #fields, 2 do table.insert(it.list, { at = number(i), n = number(i + 1) }) end
  add_up(it)
  pass(it, now)
end

-- Where nothing of it is used any more.
local function free_at(it)
  local used = it.used
  if it.kind == 'window' then
    if used.y == 0 then return now end
    return max(now, used.last, used.x + it.b)
  end
  local ends = used.x
  if used.y > 0 then ends = ends + 1 end
  return max(now, used.last, ends)
end

local function save(it)
  local used = it.used
  local state = { string.format('%s %.0f %.0f %.0f %.0f %.0f', it.kind, used.x, used.y, used.last, it.a, it.b) }
  if it.before then
    local before = it.before
    table.insert(state, string.format('%.0f %.0f %.0f %.0f', before.x, before.y, before.last, it.sealed or 0))
    for _, booking in ipairs(it.list) do table.insert(state, string.format('%.0f %.0f', booking.at, booking.n)) end
  end
  local kept = floor((free_at(it) - now) / 1000) + 2
  redis.call('SET', it.key, table.concat(state, ' '), 'PX', string.format('%.0f', kept))
end

-- For how long a call matters.
local function reach(it)
  if it.kind == 'window' then return it.b end
  return floor((it.b * it.c + it.a - 1) / it.a)
end

local function left(it)
  local goes, never = 0, it.most + 1
  while goes + 1 < never do
    local n = floor((goes + never) / 2)
    if earliest(it, n, now, now) <= now then goes = n else never = n end
  end
  if goes == it.most then return goes, now end
  return goes, earliest(it, goes + 1, now)
end

local limits = {}
for i, key in ipairs(KEYS) do
  local at = 5 + (i - 1) * 5
  local it = {
    key = key, kind = ARGV[at], n = tonumber(ARGV[at + 1]),
    a = tonumber(ARGV[at + 2]), b = tonumber(ARGV[at + 3]), c = tonumber(ARGV[at + 4]),
    used = { x = 0, y = 0, last = 0 }, list = {},
  }
  it.most = it.a
  if it.kind == 'pace' then it.most = it.c end
  if it.n > it.most and op ~= 'count' then return { 'many', now, 0, i, 0 } end
  local state = redis.call('GET', key)
  if state then load(it, state) end
  limits[i] = it
end

local counted = 'old'
if op == 'count' then
  if made > now + bound then return { 'early', now, 0, 0, 0 } end
  if made < 0 or made > now then made = now end
  for _, it in ipairs(limits) do
    if made + reach(it) > now then
      tell(it, it.n)
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
    if round == ROUNDS then from = max(from, it.used.last) end
    local found = earliest(it, it.n, from)
    if found > at then at, binding = found, i end
  end
  if at == before or #limits == 1 then break end
end

local outcome, again = 'now', 0
if at > now then outcome = 'at' end
if op == 'reserve' then
  if at - now > bound then
    outcome, again = 'wait', at - now - bound
  else
    for i, it in ipairs(limits) do
      again = remembered_at(it, it.n, at) - now
      if again > 0 then
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

local answer = { outcome, now, at, binding, again }
for _, it in ipairs(limits) do
  local goes, more = left(it)
  for _, number in ipairs({ goes, more, free_at(it) }) do table.insert(answer, number) end
end
return answer
