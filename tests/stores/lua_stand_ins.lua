-- What Redis gives to a script, as far as ledger.lua uses it; the argument is the script's source.
local source = ...
local script = assert(loadstring('local KEYS, ARGV, redis, cmsgpack, cjson, struct = ...\n' .. source, '=ledger'))
local store, lists = {}, {}

local function copy(value)
  if type(value) == 'number' then
    assert(value == value and value < 1e300 and value > -1e300, 'not a number, or infinite')
  elseif type(value) == 'table' then
    local new = {}
    local size = 0
    for k, v in pairs(value) do new[k], size = copy(v), size + 1 end
    assert(#value == 0 or #value == size, 'neither a list nor a map')
    return new
  end
  return value
end

local calls = {}

function calls.GET(key) return store[key] or false end

function calls.SET(key, value, option, ttl)
  assert(option == nil or option == 'PX' and tonumber(ttl) > 0)
  store[key] = value
end

function calls.DEL(...)
  for _, key in ipairs({...}) do store[key] = nil end
end

function calls.PEXPIRE(_, ttl) assert(tonumber(ttl) > 0) end

local function size(key)
  local count = 0
  for _ in pairs(store[key] or {}) do count = count + 1 end
  return count
end

calls.HLEN, calls.ZCARD = size, size

function calls.HGET(key, field) return store[key] and store[key][field] or false end

local function put(key, field, value)
  store[key] = store[key] or {}
  store[key][field] = value
end

local function remove(key, field)
  if store[key] then store[key][field] = nil end
end

calls.HSET, calls.HDEL, calls.ZREM = put, remove, remove

function calls.ZADD(key, score, member) put(key, member, score) end

local function sorted(key)
  local members = {}
  for member in pairs(store[key] or {}) do members[#members + 1] = member end
  table.sort(members, function(a, b)
    local x, y = store[key][a], store[key][b]
    return x < y or x == y and a < b
  end)
  return members
end

function calls.ZRANGEBYSCORE(key, from, to, limit, first, count)
  assert(from == '-inf' and limit == 'LIMIT' and first == 0)
  local found = {}
  for _, member in ipairs(sorted(key)) do
    if store[key][member] > to or #found == count then break end
    found[#found + 1] = member
  end
  return found
end

function calls.ZPOPMIN(key)
  local member = sorted(key)[1]
  if not member then return {} end
  local score = store[key][member]
  remove(key, member)
  return {member, score}
end

local subscribed = {}

function calls.PUBSUB(what, channel)
  assert(what == 'NUMSUB')
  return {channel, subscribed[channel] and 1 or 0}
end

local function call(command, ...) return calls[command](...) end
local redis = {call = call, pcall = call}
local cmsgpack = {pack = copy, unpack = copy}
local cjson = {decode = function(text)
  return assert(loadstring('return ' .. text:gsub('%[', '{'):gsub('%]', '}')))()
end}
local struct = {
  pack = function(format, ...)
    lists[#lists + 1] = {...}
    return 'list ' .. #lists
  end,
  unpack = function(format, name)
    local list = copy(lists[tonumber(name:sub(6))])
    list[#list + 1] = 1
    return unpack(list)
  end,
}

return function(...)
  return script({'key', 'key:peers', 'key:events', 'key:places'}, {...}, redis, cmsgpack, cjson, struct)
end, function() store, lists = {}, {} end, function(names)
  subscribed = {}
  for name in names:gmatch('%S+') do subscribed['paceline:' .. name] = true end
end
