-- Sums beside the quotas (tallies.py): keeps each that is later than what is there, and deletes some of the days that are too old.
--
-- KEYS[1]  A hash: the sums of each row, as words. The first one grows with each count.
-- KEYS[2]  A sorted set: the day of each row.
-- ARGV[1]  The oldest day that is kept.
-- ARGV[2]  How long the keys are kept without use, in milliseconds. Then a row, its day, its sums, the next row, ...
--
-- Returns the first sum of each row that was there before.

for _, old in ipairs(redis.call('ZRANGEBYSCORE', KEYS[2], '-inf', ARGV[1], 'LIMIT', 0, 100)) do
  redis.call('HDEL', KEYS[1], old)
  redis.call('ZREM', KEYS[2], old)
end
local had = {}
for i = 3, #ARGV, 3 do
  local is_new = redis.call('ZADD', KEYS[2], ARGV[i + 1], ARGV[i]) == 1
  local before = redis.call('HGET', KEYS[1], ARGV[i])
  before = before and string.match(before, '%S+') or '0'
  if tonumber(before) < tonumber(string.match(ARGV[i + 2], '%S+')) then redis.call('HSET', KEYS[1], ARGV[i], ARGV[i + 2]) end
  had[#had + 1] = is_new and '0' or before
end
redis.call('PEXPIRE', KEYS[1], ARGV[2])
redis.call('PEXPIRE', KEYS[2], ARGV[2])
return had
