-- One decision over any number of limits: all of them count the call, or none. The core crate decides the same, in microseconds.
--
-- KEYS: the state of each limit for its key, all in one slot. ARGV: the horizon; then for each limit its kind, the requests, and
--   `pace`, requests of the rate, microseconds of the rate (in lowest terms), burst; or
--   `window`, limit, microseconds of the window (aligned to the clock), 0.
-- All numbers are whole and below 2^53. Answers: { outcome, now, at, which limit decided, microseconds until it may be asked again }.

local floor, max = math.floor, math.max
local ROUNDS = 64

local time = redis.call('TIME')
local now = tonumber(time[1]) * 1000000 + tonumber(time[2])
local horizon = tonumber(ARGV[1])

local function three(text)
  local a, b, c = string.match(text, '^(%d+) (%d+) (%d+)$')
  return tonumber(a), tonumber(b), tonumber(c)
end

local limits = {}
for i, key in ipairs(KEYS) do
  local at = 2 + (i - 1) * 5
  local it = {
    key = key, kind = ARGV[at], requests = tonumber(ARGV[at + 1]),
    a = tonumber(ARGV[at + 2]), b = tonumber(ARGV[at + 3]), c = tonumber(ARGV[at + 4]),
    x = 0, y = 0, last = 0,
  }
  local state = redis.call('GET', key)
  if state then it.x, it.y, it.last = three(state) end
  -- It may have been of another length.
  if it.kind == 'window' then it.x = it.x - it.x % it.b end
  local most = it.a
  if it.kind == 'pace' then most = it.c end
  if it.requests > most then return { 'many', now, 0, i, 0 } end
  limits[i] = it
end

-- Of a pace, x + y/a is when the next would be due if all were evenly spaced; of a window, x its start and y its count.
local function earliest(it, from)
  from = max(from, it.last)
  if it.kind == 'pace' then
    local ahead = it.b * (it.c - it.requests)
    local due = it.x - floor(ahead / it.a)
    if it.y > ahead % it.a then due = due + 1 end
    return max(from, due)
  end
  from = max(from, it.x)
  local ends = it.x + it.b
  if it.y == 0 or it.y + it.requests <= it.a or from >= ends then return from end
  return ends
end

local function take(it, at)
  local ends
  if it.kind == 'pace' then
    local rest = 0
    if it.y > 0 then rest = 1 end
    if at - it.x - 1 >= rest then it.x, it.y = at, 0 end
    local parts = it.y + it.b * it.requests
    it.x, it.y = it.x + floor(parts / it.a), parts % it.a
    ends = it.x + 1
  else
    if it.y == 0 or at >= it.x + it.b then it.x, it.y = at - at % it.b, 0 end
    it.y = it.y + it.requests
    ends = it.x + it.b
  end
  it.last = at
  local kept = floor(max(0, max(ends, at) - now) / 1000) + 2
  redis.call('SET', it.key, string.format('%.0f %.0f %.0f', it.x, it.y, it.last), 'PX', string.format('%.0f', kept))
end

local at, binding = now, 0
for round = 0, 2 * ROUNDS - 1 do
  local before = at
  for i, it in ipairs(limits) do
    local from = at
    if round == ROUNDS and it.kind == 'pace' then from = max(from, it.last) end
    local found = earliest(it, from)
    if found > at then at, binding = found, i end
  end
  if at == before or #limits == 1 then break end
end
if at - now > horizon then
  return { 'wait', now, at, binding, at - now - horizon }
end
for _, it in ipairs(limits) do take(it, at) end
return { at == now and 'now' or 'at', now, at, binding, 0 }
