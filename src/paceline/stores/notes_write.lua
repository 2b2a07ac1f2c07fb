-- Notes beside the quotas (notes.py): keeps each in place of the one before, and deletes some of those that are too old.
--
-- KEYS[1]  A hash: the notes.
-- KEYS[2]  A sorted set: the time of each, in seconds by the clock of the server.
-- ARGV[1]  How long a note is kept, in seconds. Then a key, a note, the next key, ...

local time = redis.call('TIME')
local now = time[1] + time[2] / 1e6
for _, old in ipairs(redis.call('ZRANGEBYSCORE', KEYS[2], '-inf', now - ARGV[1], 'LIMIT', 0, 100)) do
  redis.call('HDEL', KEYS[1], old)
  redis.call('ZREM', KEYS[2], old)
end
for i = 2, #ARGV, 2 do
  redis.call('HSET', KEYS[1], ARGV[i], ARGV[i + 1])
  redis.call('ZADD', KEYS[2], string.format('%.3f', now), ARGV[i])
end
redis.call('PEXPIRE', KEYS[1], ARGV[1] * 1000)
redis.call('PEXPIRE', KEYS[2], ARGV[1] * 1000)
