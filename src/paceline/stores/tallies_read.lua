-- The rows that tallies_tell.lua keeps, of the days from ARGV[1] to ARGV[2], each with its sums. Writes nothing.

local found = {}
for _, field in ipairs(redis.call('ZRANGEBYSCORE', KEYS[2], ARGV[1], ARGV[2])) do
  found[#found + 1] = {field, redis.call('HGET', KEYS[1], field)}
end
return found
