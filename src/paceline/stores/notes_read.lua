-- The notes that notes_write.lua keeps, each with its key and its age in milliseconds. Writes nothing.

local time, found = redis.call('TIME'), {}
local now = time[1] + time[2] / 1e6
local listed = redis.call('ZRANGEBYSCORE', KEYS[2], now - ARGV[1], '+inf', 'WITHSCORES')
for i = 1, #listed, 2 do
  found[#found + 1] = {listed[i], redis.call('HGET', KEYS[1], listed[i]), math.floor((now - listed[i + 1]) * 1000)}
end
return found
