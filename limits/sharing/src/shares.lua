-- What the ledger of lease.lua has of a group, for people: it is read and not changed.
--
-- KEYS[1] is the hash. Answers nothing where there is no group, and else { terms, then for each member and limit its name, the limit, lease,
-- safe share, what it could use, microseconds since it asked }; under an empty name what is kept free for members that are not known.

local fields = redis.call('HGETALL', KEYS[1])
local group, members = nil, {}
for i = 1, #fields, 2 do
  local value = cmsgpack.unpack(fields[i + 1])
  if fields[i] == 'group' then group = value else members[string.sub(fields[i], 3)] = value end
end
if not group then return {} end

local time = redis.call('TIME')
local since = math.max(0, tonumber(time[1]) * 1000000 + tonumber(time[2]) - group.wall)
local answer = { group.terms }
local function row(...)
  for _, value in ipairs({ ... }) do answer[#answer + 1] = value end
end
for name, record in pairs(members) do
  for limit, share in pairs(record.told.shares) do
    local wants = record.wants[limit] or { 0, 0 }
    row(name, limit, share[1], share[2], wants[1], group.clock - record.heard + since)
  end
end
for limit, kept in pairs(group.unknown) do row('', limit, kept[1], kept[1], 0, 0) end
return answer
