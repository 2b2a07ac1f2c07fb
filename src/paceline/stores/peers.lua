-- The processes and their places: shared/peers.py in Lua. Between meters.lua and ledger.lua.
--
-- KEYS[2]  A hash: each process, a cmsgpack list with the fields below.
-- KEYS[3]  A sorted set: each process by its next event, in microseconds.
-- KEYS[4]  A sorted set: the waiting processes that are not in front, by the number of their place.

local LEASE, VANISHED, QUIET, FORGET, LEFT, WANE, LOOK = 15e6, 120e6, 7e6, 3600e6, 600e6, 15e6, 5e6
local WANES, SHARED_PART, SHARE_MIN, BILLION, FRONT, EVENTS_MAX = 7, 7 / 8, 1000, 1e9, 16, 200
local UNIT = 2 ^ (WANES - 1)
local SEEN, NUMBER, SHARE, DUE, LEASED, PRESUMED, LIVE, WEIGHT, TOLD, GONE, SINCE, EVENT = 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12
local PLACE, HELD, WATCHED = 13, 14, 15  -- 0 or number, until when, 1 in front, amounts; account, slots, the next account, ...

local us                                 -- the present, in microseconds of a clock that is never set back
-- The process that this message is of. It is read once and written once, in part(), so all changes go to `mine`.
local caller, mine

local function no_peers()
  redis.call('DEL', KEYS[2], KEYS[3], KEYS[4])
  state.count, state.live, state.weight, state.told, state.gone, state.awaited, state.held = 0, 0, 0, 0, 0, 0, {}
  state.front, state.behind, state.behind_count, state.place, state.moved = {}, {}, 0, 0, 0
  -- Times stay where the state has some: an evicted key is no outage.
  state.clock, state.quiet, state.away, state.charged_us = state.clock or 0, state.quiet or 0, state.away or 0, state.charged_us or 0
end

local function read_peer(who)
  if who == caller then return mine end
  local blob = redis.call('HGET', KEYS[2], who)
  return blob and cmsgpack.unpack(blob)
end

local function write_peer(who, peer)
  redis.call('HSET', KEYS[2], who, cmsgpack.pack(peer))
end

local function change(place, times)      -- of the sum of the places that are not in front
  local sum = state.behind
  for k = 4, #place do sum[k - 3] = (sum[k - 3] or 0) + place[k] * times end
end

local function find_front(who)
  for n, place in ipairs(state.front) do
    if place[1] == who then return n end
  end
end

local function drop_place(who, peer)
  local place = peer[PLACE]
  peer[PLACE] = 0
  if place[3] == 1 then
    table.remove(state.front, find_front(who))
  else
    redis.call('ZREM', KEYS[4], who)
    state.behind_count = state.behind_count - 1
    change(place, -1)
  end
end

local function withdraw(peer)
  state.live, state.weight, state.told = state.live - peer[LIVE], state.weight - peer[WEIGHT], state.told - peer[TOLD]
  if peer[LIVE] == 1 then
    local held = peer[HELD]
    for k = 1, #held, 2 do state.held[held[k]] = state.held[held[k]] - held[k + 1] end
  end
  peer[LIVE], peer[WEIGHT], peer[TOLD] = 0, 0, 0
end

local function give_back(peer)           -- _return: a vanished process is here again, or is not charged any more
  if peer[GONE] ~= 0 then
    -- By a sum over all time, so that a process that vanished costs nothing while others send messages.
    peer[PRESUMED] = peer[PRESUMED] + peer[GONE] * (state.charged_us - peer[SINCE]) * 1e-6
    state.gone, peer[GONE] = state.gone - peer[GONE], 0
    if state.quiet < peer[DUE] and peer[DUE] < state.away then state.awaited = state.awaited - 1 end
  end
end

local function enter(who, peer)
  local seen, due, share, spent = peer[SEEN], peer[DUE], peer[SHARE], 0
  local event = seen + (peer[LEASED] >= 0 and FORGET or LEFT) + 1
  if us <= seen + peer[LEASED] then
    peer[LIVE], state.live = 1, state.live + 1
    local held, sums = peer[HELD], state.held
    for k = 1, #held, 2 do
      for i = #sums + 1, held[k] do sums[i] = 0 end
      sums[held[k]] = sums[held[k]] + held[k + 1]
    end
    event = min(event, seen + peer[LEASED] + 1)
  end
  local till = seen + VANISHED
  if due ~= 0 and due <= us and us < till then
    if peer[GONE] == 0 then
      -- It was noticed late, by the next message of any process. The time before that counts, too.
      local late = max(us - max(due, state.away), 0)
      peer[GONE], peer[SINCE] = share, state.charged_us - late
      state.gone = state.gone + share
      if share > 0 and state.quiet < due and due < state.away then state.awaited = state.awaited + 1 end
      spent = share * late
    end
    event = min(event, till, us + LOOK)
  else
    give_back(peer)
    if us < due then event = min(event, due) end
  end
  -- As long as it is charged with its share, that is whole.
  local from = due ~= 0 and till or seen
  local halved = floor(max(us - from, 0) / WANE)
  if share ~= 0 and halved < WANES then
    peer[WEIGHT], peer[TOLD] = 2 ^ (WANES - 1 - halved), floor(share / 2 ^ halved)
    state.weight, state.told = state.weight + peer[WEIGHT], state.told + peer[TOLD]
    event = min(event, from + (halved + 1) * WANE)
  end
  if peer[PLACE] ~= 0 then event = min(event, peer[PLACE][2] + 1) end
  if event ~= peer[EVENT] then redis.call('ZADD', KEYS[3], event, who) end
  peer[EVENT] = event
  return spent
end

-- A process keeps a subscription, on a connection that its system closes when it ends. In an outage all have lost the
-- server, and a new one sees no process yet.
local function is_present(who)
  local found = redis.pcall('PUBSUB', 'NUMSUB', 'paceline:' .. who)
  return found.err or tonumber(found[2]) > 0
end

local function advance()
  local passed, spent = us - state.clock, 0
  if passed > QUIET then
    state.quiet, state.away, state.awaited = state.clock, us, 0
  else
    state.charged_us = state.charged_us + passed
    spent = state.gone * passed
  end
  state.clock = us
  for _, who in ipairs(redis.call('ZRANGEBYSCORE', KEYS[3], '-inf', us, 'LIMIT', 0, EVENTS_MAX)) do
    local peer = read_peer(who)
    withdraw(peer)
    if peer[PLACE] ~= 0 and peer[PLACE][2] < us then drop_place(who, peer) end
    if peer[DUE] ~= 0 and state.away <= peer[DUE] and peer[DUE] <= us and peer[WATCHED] == 1 and not is_present(who) then
      peer[SHARE], peer[DUE] = 0, 0
    end
    if peer[SEEN] + (peer[LEASED] >= 0 and FORGET or LEFT) < us then
      give_back(peer)
      redis.call('HDEL', KEYS[2], who)
      redis.call('ZREM', KEYS[3], who)
      state.count = state.count - 1
    else
      spent = spent + enter(who, peer)
      write_peer(who, peer)
    end
  end
  return spent
end

local function meet(who)
  local peer = read_peer(who)
  if not peer then
    peer = {us, 0, 0, 0, LEASE, 0, 0, 0, 0, 0, 0, 0, 0, {}}
    state.count = state.count + 1
  end
  withdraw(peer)
  give_back(peer)
  caller, mine = who, peer
end

local function come_to_front()
  while state.behind_count > 0 and #state.front < FRONT do
    local who = redis.call('ZPOPMIN', KEYS[4])[1]
    local peer = read_peer(who)
    local place = peer[PLACE]
    state.behind_count = state.behind_count - 1
    change(place, -1)
    state.moved = place[1]
    local front = {who}
    for k = 4, #place do front[k - 2] = place[k] end
    state.front[#state.front + 1] = front
    peer[PLACE] = {place[1], place[2], 1}
    if who ~= caller then write_peer(who, peer) end
  end
  if state.behind_count == 0 then state.behind, state.moved = {}, state.place end
end

local function part()
  mine[SEEN] = us
  enter(caller, mine)
  come_to_front()
  write_peer(caller, mine)
end

local function share_of_caller()
  -- Not 1/N: of eight processes that start in turn, such parts add up to 2.7.
  local told = min(floor(BILLION * UNIT / (UNIT + state.weight)), BILLION - state.told)
  return max(floor(told * SHARED_PART), SHARE_MIN)
end

local function ahead(sums)               -- what goes before the caller's place, and before a new one, by account
  local before, others, passed = {}, {}, false
  for i, sum in ipairs(sums) do before[i], others[i] = sum, sum end
  for _, place in ipairs(state.front) do
    if place[1] == caller then
      passed = true
    else
      for k = 2, #place do
        others[k - 1] = others[k - 1] + place[k]
        if not passed then before[k - 1] = before[k - 1] + place[k] end
      end
    end
  end
  if state.behind_count > 0 then
    local place = mine[PLACE]
    local inside = place ~= 0 and place[3] == 0
    local share = passed and 0 or 1
    -- WEAK: an estimate from its position. The places before it may need more or less than the mean.
    if inside then share = (place[1] - state.moved - 1) / (state.place - state.moved) end
    for i, amount in ipairs(state.behind) do
      local rest = max(amount - (inside and place[i + 3] or 0), 0)
      others[i], before[i] = others[i] + rest, before[i] + rest * share
    end
  end
  return before, others
end

local function keep_place(amounts, till, last)     -- nil: the caller has none any more
  local place = mine[PLACE]
  if place ~= 0 and (not amounts or last) then
    drop_place(caller, mine)
    place = 0
  end
  if not amounts then return end
  local new = {0, till, 0}
  if place ~= 0 then
    new[1], new[3] = place[1], place[3]
    if place[3] == 0 then change(place, -1) end
  else
    state.place = state.place + 1
    new[1] = state.place
    -- In front at once, if there is room and no earlier place waits behind it.
    if #state.front < FRONT and state.behind_count == 0 then
      new[3] = 1
      state.front[#state.front + 1] = {caller}
    else
      redis.call('ZADD', KEYS[4], state.place, caller)
      state.behind_count = state.behind_count + 1
    end
  end
  if new[3] == 1 then
    local front = {caller}
    for i, amount in ipairs(amounts) do front[i + 1] = amount end
    state.front[find_front(caller)] = front
  else
    for i, amount in ipairs(amounts) do new[i + 3] = amount end
    change(new, 1)
  end
  mine[PLACE] = new
end
