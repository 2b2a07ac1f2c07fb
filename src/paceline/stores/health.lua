-- What makes quotas unsafe at a server (redis_health.py). Writes are tried only: a replica and a full server refuse them.
--
-- KEYS[1]  A hash: when it was made, and when it was found to be lost.
-- ARGV[1]  When it was made, as this process knows it, or nothing.
--
-- Returns when the key was made (nothing: it cannot be), when it was lost, the present, and what the server says of itself,
-- or nothing where it may not be asked.

local KEPT_MS = '7776000000'  -- 90 days without use: as long as a file keeps ledgers

local time = redis.call('TIME')
local now = string.format('%.0f', time[1] * 1e6 + time[2])
local made, lost = redis.call('HGET', KEYS[1], 'made'), redis.call('HGET', KEYS[1], 'lost')
if not lost and ARGV[1] ~= '' and made ~= ARGV[1] then
  lost = now
  redis.pcall('HSET', KEYS[1], 'lost', lost)
end
if not made and type(redis.pcall('HSET', KEYS[1], 'made', now)) == 'number' then made = now end
redis.pcall('PEXPIRE', KEYS[1], KEPT_MS)
local function info(section)
  local text = redis.pcall('INFO', section)
  return type(text) == 'string' and text or ''
end
return {made or '', lost or '', now, info('memory'), info('replication')}
