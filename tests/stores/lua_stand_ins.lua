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

local redis = {call = function(command, key, value, option, ttl)
  if command == 'GET' then return store[key] or false end
  assert(command == 'SET' and option == 'PX' and tonumber(ttl) > 0)
  store[key] = value
end}
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
  return script({'key'}, {...}, redis, cmsgpack, cjson, struct)
end, function() store, lists = {}, {} end
