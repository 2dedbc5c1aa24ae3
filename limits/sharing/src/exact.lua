-- One call under any number of limits: all of them count it, or none. The core crate decides the same, in microseconds.
--
-- KEYS: the state of each limit for its key, all in one slot.
-- ARGV: what is asked, and three numbers:
--   `reserve`, the horizon, for how long it must not go, 0: takes the first moment within the horizon;
--   `peek`, 0, for how long it must not go, 0: takes nothing;
--   `count`, by how much its time may be ahead, for how long the next must not go, when the calls were made (-1: now): counts them, and
--     says when one more could go;
-- then for each limit its kind, the requests, whether many keys share it (1 or 0), and
--   `pace`: requests of the rate, microseconds of the rate (in lowest terms), burst; or
--   `window`: limit, microseconds of the window (aligned to the clock), 0.
-- All numbers are whole and below 2^53. Answers: { outcome, now, at, which limit decided, microseconds until it may be asked again }, and
-- for each limit how many could go at once, when one more could, and when nothing of it is used any more.

local floor, max, min = math.floor, math.max, math.min
local ROUNDS = 64
local HOLES_MAX = 256
local COUNT_MAX = 4503599627370496
-- The longest that a pace may have to wait after a change, in microseconds: 35 years.
local DEBT_MAX = 1125899906842624

local time = redis.call('TIME')
local now = tonumber(time[1]) * 1000000 + tonumber(time[2])
local op = ARGV[1]
local bound, pause, made = tonumber(ARGV[2]), tonumber(ARGV[3]), tonumber(ARGV[4])

-- Of a pace, x + y/a is when the next would be due if all were evenly spaced; of a window, x its start and y its count. A shared pace has
-- holes: time before a moment that was given out, in which there is room.

-- The first moment from `from` on at which a pace that stands at x + y/a has room for n.
local function due(it, x, y, n, from)
  local ahead = it.b * (it.c - n)
  local at = x - floor(ahead / it.a)
  if y > ahead % it.a then at = at + 1 end
  return max(from, at)
end

-- Where it stands after n at a moment that was due. Rounding up to a whole microsecond is not a pause.
local function after(it, x, y, n, at)
  local rest = 0
  if y > 0 then rest = 1 end
  if at - x - 1 >= rest then x, y = at, 0 end
  local parts = y + it.b * n
  return x + floor(parts / it.a), parts % it.a
end

-- The first hole with room for n, and its moment; of those that begin by `latest`.
local function room(it, n, from, latest)
  for i, hole in ipairs(it.holes) do
    if latest and hole.start > latest then return end
    if hole.ends > from then
      local at = due(it, hole.x, hole.y, n, max(from, hole.start))
      if at < hole.ends then
        local x, y = after(it, hole.x, hole.y, n, at)
        if x < hole.ends or (x == hole.ends and y == 0) then return i, at end
      end
    end
  end
end

-- With `latest`, a later moment than that may be too late.
local function earliest(it, n, from, latest)
  if it.kind == 'pace' then
    local _, at = room(it, n, from, latest)
    return at or due(it, it.x, it.y, n, max(from, it.last))
  end
  from = max(from, it.last, it.x)
  local ends = it.x + it.b
  if it.y == 0 or it.y + n <= it.a or from >= ends then return from end
  return ends
end

local function add_to_window(it, n, at)
  if it.y == 0 or at >= it.x + it.b then it.x, it.y = at - at % it.b, 0 end
  it.y = min(it.y + n, COUNT_MAX)
end

-- Takes n at a moment that `earliest` gave.
local function take(it, n, at)
  if it.kind == 'window' then
    add_to_window(it, n, at)
    it.last = at
    return
  end
  local i, found = room(it, n, at)
  if found == at then
    local hole = it.holes[i]
    local start, x, y = hole.start, hole.x, hole.y
    hole.start = at
    hole.x, hole.y = after(it, x, y, n, at)
    if start < at then table.insert(it.holes, i, { start = start, ends = at, x = x, y = y }) end
  else
    if it.shared and at > it.x and at > it.last then
      table.insert(it.holes, { start = it.last, ends = at, x = it.x, y = it.y })
    end
    it.x, it.y = after(it, it.x, it.y, n, at)
    it.last = max(it.last, at)
  end
  it.holes[HOLES_MAX + 1] = nil
end

-- Counts n that were made all the same, as far as they have an effect: a pace has no burst left at worst.
local function tell(it, n)
  n = min(n, it.most)
  if it.kind == 'window' then return add_to_window(it, n, now) end
  local first
  local x, y, last = it.x, it.y, it.last
  for i, hole in ipairs(it.holes) do
    if hole.ends > now then
      first, x, y, last = i, hole.x, hole.y, hole.start
      break
    end
  end
  if x < now then x, y = now, 0 end
  local space = (max(now, last) - x) * it.a - y + it.b * it.c
  n = min(n, floor((space + it.b - 1) / it.b))
  if n <= 0 then return end
  if not first then
    it.x, it.y = after(it, it.x, it.y, n, now)
    return
  end
  -- What is more than a hole has time for is carried on behind its end.
  local debt = it.b * n
  for i = first, #it.holes do
    local hole = it.holes[i]
    local x, y, ends, rest = hole.x, hole.y, hole.ends, 0
    if x >= ends then ends, rest = x, y end
    if hole.start <= now and x < now then x, y = now, 0 end
    local parts = y + debt
    hole.x, hole.y = x + floor(parts / it.a), parts % it.a
    debt = (hole.x - ends) * it.a + hole.y - rest
    if debt <= 0 then return end
  end
  local parts = it.y + debt
  it.x, it.y = it.x + floor(parts / it.a), parts % it.a
end

-- What was used stays used, in requests, where the limit was of another kind, window or rate.
local function carry(it, kind, a, b)
  if kind == it.kind and b == it.b and (a == it.a or kind == 'window') then return end
  it.holes = {}
  if kind == 'pace' and it.kind == 'pace' then
    local debt = it.x - now
    if it.y > 0 then debt = debt + 1 end
    if debt > 0 then it.x, it.y = now + min(math.ceil(debt * (it.b * a) / (it.a * b)) + 1, DEBT_MAX), 0 end
    if debt <= 0 then it.y = 0 end
    return
  end
  local used = 0
  if kind == 'pace' then
    used = math.ceil(((it.x - now) * a + it.y) / b)
  elseif it.x + b > now then
    used = it.y
  end
  it.x, it.y = 0, 0
  if used > 0 then
    local last = it.last
    tell(it, used)
    it.last = last
  end
end

local function load(it, state)
  local fields = {}
  for field in string.gmatch(state, '%S+') do fields[#fields + 1] = field end
  local number = function(i) return tonumber(fields[i]) end
  it.x, it.y, it.last = number(2), number(3), number(4)
  for i = 7, #fields, 4 do
    local hole = { start = number(i), ends = number(i + 1), x = number(i + 2), y = number(i + 3) }
    if hole.ends > now then table.insert(it.holes, hole) end
  end
  if not it.shared then it.holes = {} end
  carry(it, fields[1], number(5), number(6))
end

-- Where nothing of it is used any more.
local function free_at(it)
  if it.kind == 'window' then
    if it.y == 0 then return now end
    return max(now, it.last, it.x + it.b)
  end
  local ends = it.x
  if it.y > 0 then ends = ends + 1 end
  return max(now, it.last, ends)
end

local function save(it)
  local state = { string.format('%s %.0f %.0f %.0f %.0f %.0f', it.kind, it.x, it.y, it.last, it.a, it.b) }
  for _, hole in ipairs(it.holes) do
    table.insert(state, string.format('%.0f %.0f %.0f %.0f', hole.start, hole.ends, hole.x, hole.y))
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
  local at = 5 + (i - 1) * 6
  local it = {
    key = key, kind = ARGV[at], n = tonumber(ARGV[at + 1]), shared = ARGV[at + 2] == '1',
    a = tonumber(ARGV[at + 3]), b = tonumber(ARGV[at + 4]), c = tonumber(ARGV[at + 5]),
    x = 0, y = 0, last = 0, holes = {},
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
    if round == ROUNDS and it.kind == 'pace' then from = max(from, it.last) end
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
