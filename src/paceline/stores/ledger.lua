-- The shared ledger of a pool in Redis: shared/ledger.py and its meters, in one call. A differential test compares the
-- two bit for bit: a change here is a change there, down to the order of additions.
--
-- KEYS[1]  The state, one cmsgpack blob. Fields that this script does not know are kept. For the others see peers.lua.
-- ARGV[1]  The message as JSON, see redis_wire.py.
-- ARGV[2]  The message's quotas, one a line: unit, amount, period, burst, rule and anchor.
-- ARGV[3]  The time in microseconds, for tests; without it the clock of the server.
--
-- Time: `now` and all instants are nanoseconds since the state's `epoch`, whole numbers below 2^53, which doubles hold
-- exactly. Windows follow the calendar: `wall`, their start and their stop are microseconds since 1970. When the clock
-- is set back, or `now` grows large, the epoch moves instead of the instants, or with them.
--
-- meters.lua and peers.lua come first; the three are one script.

local FORMAT = 4                         -- of the state; one of an older format is read without its processes, which report again
local GRACE, PROBE, WAIT_MAX = 2 * NS, 2 * NS, 86400 * NS
local POLL, REJOIN, NOTES_MAX = NS / 200, 5 * NS / 2, 64

local index                              -- of the account, for each quota of the message

-- The pause of the pool, as in core/pause.py. In the state, `probe_next` is true in the phase closed, and `probe` names in
-- the phase probing the process whose probe is in flight.
local function pause(not_before, closed, probe)
  state.not_before, state.probe_next, state.probe = not_before, closed, probe
end

-- Returns whether a newer version has written the state, which then stays as it is.
local function load()
  local blob = redis.call('GET', KEYS[1])
  if not blob then
    local epoch = (floor(wall / GRID_US) - 1) * GRID_US
    state = {format = FORMAT, epoch = epoch, wall = wall, born = wall, set = 0, accounts = {}, not_before = 0, count = -1}
    blob = cmsgpack.pack(state)
  else
    state = cmsgpack.unpack(blob)
    if state.format > FORMAT then return true end
    if wall < state.wall then                      -- the clock was set back
      local by = wall - state.wall
      state.epoch, state.set, state.wall = state.epoch + by, state.set + by, wall
    end
  end
  -- Redis refuses a script for want of memory only at its first write. Here nothing is changed yet, so all or nothing.
  redis.call('SET', KEYS[1], blob)
  last, now = (state.wall - state.epoch) * 1000, (wall - state.epoch) * 1000
  state.wall, us = wall, wall - state.set
  if state.format < FORMAT or redis.call('HLEN', KEYS[2]) ~= state.count or redis.call('ZCARD', KEYS[3]) ~= state.count then
    state.format = FORMAT
    -- An older version stored the processes otherwise, or Redis has evicted a key of them: all say again what they hold.
    no_peers()
  end
end

local function rebase()
  local by_us = (floor(now / GRID) - 1) * GRID_US
  local by = by_us * 1000
  local function earlier(instant) return max(instant - by, 0) end
  state.epoch, now, last, state.not_before = state.epoch + by_us, now - by, last - by, earlier(state.not_before)
  for _, m in ipairs(meters) do
    local s = m.s
    if s.full then
      s.full, s.sequence = earlier(s.full), earlier(s.sequence)
      for i = 1, #s.low, 2 do s.low[i] = earlier(s.low[i]) end
      -- Not earlier(): a month is longer than the grid, and what ended before the new epoch stays in the log.
      local log = s.log or {}
      for i = 1, #log, 2 do log[i] = log[i] - by end
    end
  end
end

local function configure(fresh, gentle, headroom, windows, recalled)
  -- Each account by its key, and as it was given: a line that is known needs no parsing, and no replacement.
  local found = {}
  for i, account in ipairs(state.accounts) do found[account.key], found[account.given] = i, i end
  index = {}
  for line in string.gmatch(ARGV[2], '[^\n]+') do
    local i, n, is_new = found[line], #index + 1, false
    if not i then
      local key, s = parse(line)
      i = found[key]
      if not i then
        i, is_new = #meters + 1, true
        found[key] = i
        state.accounts[i] = {key = key, given = line, version = 0, charged = 0, spent = 0, meter = begin(s, headroom, gentle)}
        wrap(i)
      elseif fresh then
        local account = state.accounts[i]
        found[account.given] = nil       -- a quota that comes twice is the last one
        account.given, account.version, account.epoch = line, account.version + 1, (account.epoch or 0) + 1
        replace(i, begin(s, headroom, gentle))
      end
    end
    index[n] = i
    local m, days = meters[i], windows[n] or 0
    -- Of another time zone, if a process is configured differently, the days are ignored.
    if days ~= 0 and days[1] == m.s.anchor then m.s.days = days end
    if is_new then
      recall(m, recalled[n] or {})
      if m.kind == SLOTS and m.s.used > 0 then state.awaited = state.awaited + 1 end
    end
  end
end

local function settle(news, who, gentle)
  local answered, probe = news[2], news[3]
  for n = 1, min(#index, (#news - 3) / 3) do
    local m, charged, mark, actual = meters[index[n]], news[3 * n + 1], news[3 * n + 2], news[3 * n + 3]
    if actual ~= charged then
      correct(m, mark, charged, actual)
      local account = state.accounts[index[n]]
      account.spent = account.spent + (actual - charged)
    end
    if gentle and answered and m.kind == BUCKET and m.s.opened then
      local most = max(charged, actual)
      m.s.opened = max(m.s.opened, most) + most
      if m.s.opened >= m.s.burst then m.s.opened = nil end
      widen(m)
    end
  end
  if probe and state.probe == who then pause(min(state.not_before, now), not answered) end
end

local function learn(i, what, value)
  local account, m = state.accounts[i], meters[i]
  account.version = account.version + 1
  local flows = m.kind == BUCKET or m.kind == SPACED
  if what == 'epoch' then
    account.epoch = (account.epoch or 0) + 1
  elseif what == 'adopt' then
    if not (value > 0 and value < INF) then return end
    local grown = max(value - m.s.amount, 0)
    if flows then resize(m, value, nil) else with_amount(m.s, value) end
    if m.kind == BUCKET then not_granted(m, grown) end
  elseif what == 'seen' and m.kind == WINDOW then
    roll(m)
    m.s.used = max(m.s.used, m.s.amount - value)
  elseif what == 'shift' and flows then
    shift(m, round(value))
    account.shifted = (account.shifted or 0) + round(value)
  elseif what == 'set_ceiling' and flows then
    local ceiling = min(max(value, CEILING_MIN), 1)
    resize(m, nil, ceiling ~= 1 and ceiling or nil)
  elseif what == 'cap_burst' and m.kind == BUCKET then
    m.s.burst_cap = value < INF and max(value, 0) or nil
    widen(m)
  elseif what == 'spread' and m.kind == BUCKET then
    local s = m.s
    replace(i, begin({unit = s.unit, amount = s.amount, period = s.period, burst = s.burst, rule = s.rule,
                      anchor = s.anchor, spread = true}, s.headroom))
  end
end

local function note(key, text)                     -- the newest last
  local notes = state.notes or {}
  for n = #notes - 2, 1, -3 do
    if notes[n] == key then
      for _ = 1, 3 do table.remove(notes, n) end
    end
  end
  for _, value in ipairs({key, text, us}) do notes[#notes + 1] = value end
  for _ = 1, #notes - 3 * NOTES_MAX do table.remove(notes, 1) end
  state.notes, state.noted = notes, max((state.noted or 0) + 1, us)
end

local function take_news(list, versions, who, gentle)
  -- Compared before the loop: each change raises the version, and the second one of a message applies, too.
  local fresh = {}
  for n, i in ipairs(index) do fresh[n] = state.accounts[i].version == versions[n] end
  for _, news in ipairs(list) do
    local what = news[1]
    if what == 'settled' then
      settle(news, who, gentle)
    elseif what == 'refused' then
      for n = 1, min(#index, #news - 3) do
        local account = state.accounts[index[n]]
        account.refused, account.version = (account.refused or 0) + news[n + 3], account.version + 1
      end
      if news[2] ~= 0 then
        state.probe_ns = state.probe_next and max(news[3], state.probe_ns or PROBE) or news[3]
        pause(max(state.not_before, now + news[2]), true)
      end
    elseif what == 'noted' then
      note(news[2], news[3])
    elseif what == 'spent' then
      local counted = 0
      for n = 1, min(#index, #news[2], #news[3]) do
        local account, amount = state.accounts[index[n]], news[2][n]
        account.charged, account.spent = account.charged + amount, account.spent + amount
        local more, ns = beyond(meters[index[n]], news[3][n], mine[PRESUMED])
        absorb(meters[index[n]], more)
        counted = max(counted, ns)
      end
      mine[PRESUMED] = mine[PRESUMED] - counted
    elseif fresh[news[2] + 1] then
      learn(index[news[2] + 1], what, news[3])
    end
  end
end

local function take_held(said)                     -- the slots that this process holds
  local held = {}
  for n = 1, min(#index, #said) do
    if meters[index[n]].kind == SLOTS then held[index[n]] = said[n] end
  end
  for i, m in ipairs(meters) do
    if m.kind == SLOTS then m.s.used = (state.held[i] or 0) + (held[i] or 0) end
  end
  return held
end

local function grant(out, who, wants, held, place_ns, slack)    -- within which time the caller will report again; 0: in any
  local sums, gone, peers = {}, state.gone / BILLION, state.live + 1
  -- Those that vanished may spend their share of a window at its start, at its end, or all at once: it stays unused.
  for i, m in ipairs(meters) do sums[i] = m.kind == WINDOW and m.s.amount * gone or 0 end
  local before, others = ahead(sums)
  local granted, probe, latest, binds = 0, 0, now, -1
  -- What those that vanished in an outage have spent is known when they report, or after REJOIN.
  local back = state.awaited ~= 0 and now + max(REJOIN - (us - state.away) * 1000, 0) or now
  for _, want in ipairs(wants) do
    latest, binds = max(state.not_before, back), -1
    local count = min(#index, #want)
    for n = 1, count do
      if want[n] ~= 0 then
        local at = after(meters[index[n]], before[index[n]] or 0, want[n], slack)
        if at > latest then latest, binds = at, n - 1 end
      end
    end
    if latest > now then break end
    for n = 1, count do
      local i, amount, account = index[n], want[n], state.accounts[index[n]]
      account.charged, account.spent = account.charged + amount, account.spent + amount
      out[#out + 1] = amount ~= 0 and charge(meters[i], amount) or 0
      if meters[i].kind == SLOTS then held[i] = (held[i] or 0) + amount end
    end
    granted, before = granted + 1, others          -- the caller's next request is behind all that wait
    if state.probe_next then
      pause(now + (state.probe_ns or PROBE), false, who)
      probe = 1
    end
  end
  local wait = granted < #wants and min(latest - now, WAIT_MAX) or 0
  local within = max(place_ns ~= 0 and min(wait, max(place_ns, peers * POLL)) or 0, #wants > 0 and slack or 0)
  local amounts, till = nil, nil
  if granted < #wants and place_ns ~= 0 then
    amounts, till = {}, us + floor((within + GRACE) / 1000)
    for i = 1, #meters do amounts[i] = 0 end
    for n = 1, min(#index, #wants[granted + 1]) do amounts[index[n]] = wants[granted + 1][n] end
  end
  keep_place(amounts, till, granted > 0)
  out[1], out[2], out[3], out[4], out[5], out[6] = granted, probe, wait, binds, max(state.not_before, back) - now, peers
  return within
end

local function tell(out, i, known)                 -- how an account stands
  local account, m = state.accounts[i], meters[i]
  local s, k = m.s, #out
  if m.kind == SPACED then forget(m) elseif m.kind == WINDOW then roll(m) end
  out[k + 1] = s.full and number(max(s.full - now, 0)) or 0    -- durations: the clocks of processes differ
  if m.kind == WINDOW and s.stop then out[k + 1] = number(max(s.stop - wall, 0) * 1000) end   -- until it restarts
  out[k + 2] = number(m.kind == BUCKET and 0 or s.used)
  out[k + 3], out[k + 4] = number(account.charged), number(account.spent)
  out[k + 5] = number(s.opened or INF)
  if account.version == known then
    out[k + 6] = -1
    return
  end
  out[k + 6], out[k + 7], out[k + 8] = account.version, s.unit, number(s.amount)
  out[k + 9], out[k + 10], out[k + 11], out[k + 12] = number(s.period), number(s.burst), s.rule, s.anchor or ''
  out[k + 13], out[k + 14] = s.spread and 1 or 0, number(s.burst_cap or INF)
  out[k + 15], out[k + 16] = number(s.ceiling or 1), s.full and number(account.shifted or 0) or 0
  out[k + 17], out[k + 18] = account.epoch or 0, number(account.refused or 0)
end

local who, number_of, headroom, place_ns, slack, versions, news, wants, said, windows, recalled, share, late, noted,
  fresh, gentle, leaving, alone, closed, present = unpack(cjson.decode(ARGV[1]))
if ARGV[3] then
  wall = tonumber(ARGV[3])
else
  local time = redis.call('TIME')
  wall = time[1] * 1e6 + time[2]
end
-- Its sender does not wait any more: what is granted here would be charged, and never sent.
if late ~= 0 and wall >= late then return {-1, 0, 0, 0, 0, 0, 0, wall} end
if load() then return {-2, 0, 0, 0, 0, 0, 0, wall} end
for i = 1, #state.accounts do wrap(i) end
local spent = advance() * 1e-6                     -- what vanished processes may have spent since the last message
for i = 1, spent ~= 0 and #meters or 0 do spend(meters[i], last, spent) end
if now >= 2 * GRID then rebase() end
configure(fresh, gentle, headroom, windows, recalled)
meet(who)
-- Messages that were answered are unknown here: an empty server, a snapshot, or a replica that took over.
if mine[NUMBER] < number_of - 1 and (mine[NUMBER] > 0 or us - (state.born or 0) < LEFT) then
  for n, i in ipairs(index) do remember(meters[i], recalled[n] or {}) end
end
mine[WATCHED] = present and is_present(who) and 1 or 0
if mine[PRESUMED] ~= 0 and not alone and mine[DUE] ~= mine[SEEN] then
  for i = 1, #meters do unspend(meters[i], now - (us - mine[DUE]) * 1000, mine[PRESUMED]) end
  mine[PRESUMED] = 0
end
-- A message without a reply comes again under its number. Its news was taken the first time.
if number_of > mine[NUMBER] then
  mine[NUMBER] = number_of
  take_news(news, versions, who, gentle)
end
if not alone then mine[PRESUMED] = 0 end
local out = {0, 0, 0, 0, 0, 0, 0, wall, state.noted or 0, 0}
local notes = out[9] ~= noted and state.notes or {}
for n = 1, #notes, 3 do
  out[10], out[#out + 1], out[#out + 2], out[#out + 3] = out[10] + 1, notes[n], notes[n + 1], (us - notes[n + 2]) * 1000
end
local held = take_held(said)
local within = grant(out, who, wants, held, place_ns, slack)
mine[HELD] = {}
for i = 1, #meters do
  local list = mine[HELD]
  if held[i] and held[i] ~= 0 then list[#list + 1], list[#list + 2] = i, held[i] end
end
local told = share_of_caller()
out[7], mine[SHARE] = told, max(round(share * BILLION), told)
mine[DUE] = alone and us or within ~= 0 and us + floor((within + GRACE) / 1000) or 0
mine[LEASED] = max(LEASE, floor(3 * (out[6] * POLL) / 1000))
if closed then mine[SHARE], mine[DUE] = 0, 0 end          -- closed: it spends nothing while the store is lost
if leaving then mine[LEASED], mine[SHARE] = -1, 0 end          -- its number must not be forgotten
part()
local shown, longest = {}, 1800
for n, i in ipairs(index) do
  tell(out, i, versions[n])
  shown[i] = true
end
for i, m in ipairs(meters) do
  if not shown[i] then tell(out, i, -1) end
  local s = m.s
  longest = max(longest, s.period)
  if s.low then s.low = packed(s.low) end
  if s.log then s.log = packed(s.log) end
end
-- After this time without use, every quota is full again.
local ttl = string.format('%.0f', (2 * longest + 86400) * 1000)
redis.call('SET', KEYS[1], cmsgpack.pack(state), 'PX', ttl)
for n = 2, 4 do redis.call('PEXPIRE', KEYS[n], ttl) end
return out
