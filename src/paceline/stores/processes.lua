-- The processes that share a pool, at most ARGV[1] of them, as the fields of peers.lua that Seen.of() takes, at the instant 0: cjson
-- has 14 digits. KEYS as in ledger.lua. Writes nothing.

local blob = redis.call('GET', KEYS[1])
if not blob then return '[]' end
local time, rows = redis.call('TIME'), {}
local now = time[1] * 1e6 + time[2] - cmsgpack.unpack(blob).set
for _, who in ipairs(redis.call('ZRANGEBYSCORE', KEYS[3], '-inf', '+inf', 'LIMIT', 0, ARGV[1])) do
  local packed = redis.call('HGET', KEYS[2], who)
  if packed then
    local peer = cmsgpack.unpack(packed)
    local due, place = peer[4], peer[13]
    due = due ~= 0 and (due == now and -1 or due - now) or 0
    rows[#rows + 1] = {who, 0, peer[1] - now, due, peer[5], peer[9], type(place) == 'table' and place[2] - now or -1}
  end
end
return #rows > 0 and cjson.encode(rows) or '[]'
