-- The meters of ledger.lua, which follows: core/meters.py and shared/meters.py in Lua.

local floor, ceil, min, max = math.floor, math.ceil, math.min, math.max
local INF, NS = math.huge, 1e9
local GRID_US = 2^41                     -- epochs lie on a grid, so that marks stay comparable if the state is lost
local GRID = GRID_US * 1000              -- 25 days. At two of them the epoch moves: they are below 2^53
local LOW_POINTS_MAX, SLICES, PARTS, FULL_WAIT, CEILING_MIN, TINY = 16, 512, 8, NS / 20, 0.01, 1e-9
local DAY_US, PAST = 86400e6, -2^52      -- a window's mark lies further back than any instant
local BUCKET, SPACED, WINDOW, SLOTS = 1, 2, 3, 4

local state, now, wall, last             -- last: the time of the message before, as `now`
local meters = {}                        -- one for each account

local function round(x)                  -- to even, as Python does
  local whole = floor(x)
  local rest = x - whole
  if rest > 0.5 or (rest == 0.5 and whole % 2 == 1) then return whole + 1 end
  return whole
end

-- Redis cuts the fraction off a number in a reply, so such a number goes as text, with all digits.
local function number(x)
  if x % 1 == 0 and x < 2^53 and x > -2^53 then return x end
  return string.format('%.17g', x)
end

local function packed(list)              -- a list of numbers as one string: quicker to keep
  return struct.pack('<' .. string.rep('d', #list), unpack(list))
end

local function listed(text)
  local list = {struct.unpack('<' .. string.rep('d', #text / 8), text)}
  list[#list] = nil                      -- struct.unpack adds the place where it ended
  return list
end

-- A meter: `s` is its stored state, the rest follows from that. First Window.

local function roll(m)
  local s = m.s
  if s.start and s.start - m.period <= wall and wall < s.stop then return end
  if s.anchor == 'utc' then
    s.start = wall - wall % m.period
    s.stop = s.start + m.period
  else
    local days = s.days                  -- a time zone and the starts of its days, as a process sent them last
    -- A script has no time zones. Until a process has sent the days, s.stop is missing, and after() grants nothing.
    if not days then return end
    local from, to
    for i = 2, 4 do
      if days[i] * 1e6 <= wall and wall < days[i + 1] * 1e6 then from, to = days[i] * 1e6, days[i + 1] * 1e6 end
    end
    -- The process's clock is days off. We count whole days from its own, so that no day ends early.
    if not from then
      from = days[3] * 1e6 + floor((wall - days[3] * 1e6) / DAY_US) * DAY_US
      to = from + DAY_US
    end
    s.start, s.stop = from, to
  end
  s.used = 0
end

-- Bucket and Spread

local LONG_S = 600                                 -- a quota with a longer period opens whole
-- Not s.period / 30: the core multiplies by a constant, and for a period of 62 s a quotient has another last digit.
local function small_burst(s) return max(2, 1 / 30 * s.period) end

local function reach_of(m, burst)
  local burst_ns = burst * m.ns_per_unit
  return floor(burst_ns - min(m.s.headroom * NS, burst_ns / 2))
end

-- Missing in the state is infinite in Python: s.opened of an open bucket, and s.burst_cap that no answer has shown.
local function widen(m)
  local s = m.s
  m.reach = m.open_reach
  if s.burst_cap and s.burst_cap < s.burst then m.reach = reach_of(m, s.burst_cap) end
  if s.opened then m.reach = min(m.reach, floor(s.opened * m.ns_per_unit)) end
end

local function take(m)
  local s = m.s
  if m.kind == BUCKET then
    m.ns_per_unit = s.period * NS / s.amount / (s.ceiling or 1)
    m.open_reach = reach_of(m, s.burst)
    m.full_wait = min(FULL_WAIT, floor(s.headroom * NS))
    widen(m)
  elseif m.kind == SPACED then
    m.period = ceil((s.period + min(s.headroom, s.period) / 4) * NS)
    m.slice = floor(m.period / SLICES)
    local burst = min(1 / 31 * s.amount, s.burst)
    m.ns_per_unit = (m.period + m.period / SLICES) / (s.amount - burst) / (s.ceiling or 1)
    m.reach = floor(burst * m.ns_per_unit)
  elseif m.kind == WINDOW then
    m.period = max(round(s.period * 1e6), 1)
    m.guard = ceil(s.headroom * NS)
  end
end

local function count_used(s)
  s.used = 0
  for i = 2, #s.log, 2 do s.used = s.used + s.log[i] end
end

local function forget(m)                 -- drop what is older than the period of a spread quota
  local s, upto, gone = m.s, now - m.period, 0
  local log = s.log                      -- the end of a slice, its amount, the next
  while log[gone + 1] and log[gone + 1] <= upto do gone = gone + 2 end
  if gone == 0 then return end
  for i = 1, #log do log[i] = log[i + gone] end
  count_used(s)
end

local function after(m, ahead, cost, slack)
  local s = m.s
  if m.kind == SLOTS then return s.used + ahead + cost <= s.amount and now or INF end
  if m.kind == WINDOW then
    roll(m)
    if not s.stop then return INF end
    local stop = now + (s.stop - wall) * 1000
    local closed = now >= stop - m.guard - slack
    if closed or s.used + ahead + cost > s.amount then
      local later = ahead + cost - (closed and 0 or max(s.amount - s.used, 0))
      local restarts = max(ceil(later / s.amount - TINY), 1)
      return stop + (restarts - 1) * m.period * 1000 + m.guard
    end
    return max(now + (s.start - wall) * 1000 + m.guard, now)
  end
  local from = s.full
  if ahead ~= 0 then from = max(from, now) + ceil(ahead * m.ns_per_unit) end
  local cost_ns = ceil(cost * m.ns_per_unit) + slack
  local need = cost_ns - m.reach
  -- The three cases of Bucket.earliest() in core/meters.py.
  if m.kind == BUCKET then
    if need > 0 then
      local over = max(cost_ns - m.open_reach, 0)
      need = cost <= s.burst and min(over, m.full_wait) or over
    end
    return from + need
  end
  from = from + min(need, 0)
  forget(m)
  local over, log = s.used + ahead + cost - s.amount, s.log
  if over <= TINY then return from end
  for i = 1, #log, 2 do
    over = over - log[i + 1]
    if over <= TINY then return max(from, log[i] + m.period) end
  end
  return max(from, now + m.period)
end

local function count_in(m, cost)         -- of Spread: count()
  forget(m)
  local s, log, count = m.s, m.s.log, #m.s.log
  if count == 0 or log[count - 1] < now then
    log[count + 1], log[count + 2] = now + m.slice, 0
    count = count + 2
  end
  log[count] = log[count] + cost
  s.used = s.used + cost
end

local function charge(m, cost)
  local s = m.s
  if m.kind == SLOTS then s.used = s.used + cost return 0 end
  if m.kind == WINDOW then
    roll(m)
    s.used = s.used + cost
    -- If another rule replaces the window, a bucket reads this mark as older than all its low points.
    return PAST - (s.start or 0)
  end
  local lack, low = max(s.full - now, 0), s.low    -- low points: sequence, lack, the next
  s.full = now + lack + ceil(cost * m.ns_per_unit)
  local count = #low
  while count > 0 and low[count] >= lack do
    low[count], low[count - 1] = nil, nil
    count = count - 2
  end
  s.sequence = max(s.sequence + 1, now)
  low[count + 1], low[count + 2] = s.sequence, lack
  if count + 2 > 2 * LOW_POINTS_MAX then
    local at, least = 1, math.huge                 -- the two that lacked nearly the same: later mark, smaller lack
    for i = 1, count, 2 do
      if low[i + 3] - low[i + 1] < least then at, least = i, low[i + 3] - low[i + 1] end
    end
    low[at] = low[at + 2]
    for i = at + 2, count + 2 do low[i] = low[i + 2] end
  end
  if m.kind == SPACED then count_in(m, cost) end
  return s.sequence
end

local function correct_bucket(m, mark, charged, actual)
  local s, low = m.s, m.s.low
  local lack = s.full - now
  local refund = ceil(charged * m.ns_per_unit) - ceil(actual * m.ns_per_unit)
  if refund < 0 then
    s.full = now + max(lack, 0) - refund
    return
  end
  local count = #low / 2
  local since = count
  while since > 0 and low[2 * since - 1] > mark do since = since - 1 end
  -- As LowPoints.lower(): low[2 * since + 2] is what was lacking at the first low point after the mark.
  local by = 0                                     -- by how much each later low point would have been lower
  if since < count then
    by = min(refund, low[2 * since + 2])
    lack = min(lack, low[2 * since + 2])
  end
  if refund == 0 or lack <= 0 then return end
  s.full = s.full - min(refund, lack)
  for i = since + 1, count do low[2 * i] = low[2 * i] - by end
  -- Those that are undercut now leave, so that what was lacking stays ascending.
  while since > 0 and since < count and low[2 * since] >= low[2 * since + 2] do
    for i = 2 * since - 1, 2 * count do low[i] = low[i + 2] end
    since, count = since - 1, count - 1
  end
end

local function correct(m, mark, charged, actual)
  local s = m.s
  if m.kind == WINDOW then
    roll(m)
    if mark == 0 or mark == PAST - (s.start or 0) then s.used = max(s.used + actual - charged, 0) end
  elseif m.kind ~= SLOTS then
    -- From before the epoch moved. A second more, because marks of one instant are made unique by counting ahead.
    while mark > now + NS do mark = mark - GRID end
    correct_bucket(m, mark, charged, actual)
    if m.kind == SPACED and mark == 0 then           -- nothing was charged
      count_in(m, actual)
    elseif m.kind == SPACED then
      forget(m)
      local log = s.log
      -- As Log.correct(): the entry of the slice at the mark, down to 0.
      local i = #log - 1
      while i > 1 and log[i - 2] >= mark do i = i - 2 end
      if i > 0 and log[i] >= mark and log[i] - m.slice <= mark then
        local change = max(actual - charged, -log[i + 1])
        log[i + 1] = log[i + 1] + change
        s.used = s.used + change
      end
    end
  end
end

local function not_granted(m, amount)
  local s = m.s
  if s.opened then
    s.opened = max(s.opened + amount, small_burst(s) * (s.amount / s.period))
    widen(m)
  end
end

local function shift(m, by)
  local s = m.s
  if by > 0 then
    local before = s.full
    charge(m, 0)
    s.full = before
  else
    for i = 2, #s.low, 2 do s.low[i] = max(s.low[i] + by, 0) end
  end
  s.full = s.full + by
  not_granted(m, by / m.ns_per_unit)
end

local function with_amount(s, amount)
  if s.burst == s.amount then s.burst = amount else s.burst = min(s.burst, amount) end
  s.amount = amount
end

local function resize(m, amount, ceiling)          -- adopt (an amount) and set_ceiling, of Spread too
  local s, before = m.s, m.ns_per_unit
  local owed = max(s.full - now, 0) / before
  local level, burst = s.burst - owed, s.burst
  if m.kind == BUCKET then charge(m, 0) end
  s.ceiling = ceiling
  if amount then with_amount(s, amount) end
  take(m)
  if m.kind == SPACED then
    s.full, s.low = now + ceil(owed * m.ns_per_unit), {}
    return
  end
  local grown = min(s.burst - burst, 0)            -- only where it shrinks, as in Bucket.become() of core/meters.py
  s.full = now + ceil((s.burst - min(level, s.burst)) * m.ns_per_unit)
  for i = 2, #s.low, 2 do s.low[i] = max(floor((s.low[i] / before + grown) * m.ns_per_unit), 0) end
end

local function fill(m, parts)            -- of Spread: charges elsewhere, by eighths of the last period
  forget(m)
  local s, log = m.s, m.s.log
  for part = 1, min(#parts, PARTS) do
    local amount, stop = parts[part], now - (part - 1) * floor(m.period / PARTS)
    if amount > 0 then
      local i = 1
      while log[i] and log[i] < stop do i = i + 2 end
      if log[i] == stop then log[i + 1] = log[i + 1] + amount
      else
        table.insert(log, i, amount)
        table.insert(log, i, stop)
      end
    end
  end
  count_used(s)
end

local function sum(parts)
  local total = 0
  for _, part in ipairs(parts) do total = total + part end
  return total
end

local function at_once(m, parts)         -- of shared/meters.py: what a meter lacks after these charges, by eighths
  if m.kind ~= BUCKET then return sum(parts) end
  local lack = 0
  for i = #parts, 1, -1 do
    lack = max(lack - m.s.period * NS / PARTS, 0) + parts[i] * m.ns_per_unit
  end
  return lack / m.ns_per_unit
end

local function absorb(m, parts)          -- of shared/meters.py
  if m.kind == SPACED then return fill(m, parts) end
  local amount = at_once(m, parts)
  if amount ~= 0 then
    charge(m, amount)
    if m.kind == BUCKET then not_granted(m, amount) end
  end
end

local function spend(m, since, spent)    -- of shared/meters.py, as the next two
  if not m.ns_per_unit then return end   -- of a window, grant() keeps their share unused
  local lack = max(spent - (max(m.s.full, now) - max(m.s.full, since)), 0)
  if lack > 0 then
    charge(m, lack / m.ns_per_unit)
    not_granted(m, lack / m.ns_per_unit)
  end
  if m.kind == SPACED and spent > lack then count_in(m, (spent - lack) / m.ns_per_unit) end
end

local function unspend(m, since, spent)
  if not m.ns_per_unit then return end
  local before = m.s.full
  correct(m, since, spent / m.ns_per_unit, 0)
  not_granted(m, (m.s.full - before) / m.ns_per_unit)
end

local function beyond(m, parts, presumed)
  local total, rest = sum(parts), {}
  if not m.ns_per_unit or presumed == 0 or total == 0 then return parts, 0 end
  local paid = presumed / m.ns_per_unit
  for n, part in ipairs(parts) do rest[n] = part * (max(total - paid, 0) / total) end
  return rest, presumed * min(total / paid, 1)
end

local function recall(m, parts)          -- of shared/ledger.py: start where a process remembers that a lost ledger stood
  if m.kind ~= BUCKET then return absorb(m, parts) end
  local s, amount = m.s, at_once(m, parts)
  if amount == 0 then return end
  s.full = now + round(amount * m.ns_per_unit)
  if s.opened then
    s.opened = max(s.opened, amount)
    widen(m)
  end
end

local function remember(m, parts)        -- of shared/meters.py: a process remembers what an earlier state lacks
  if m.kind == SLOTS then return end
  if m.kind == WINDOW then roll(m) elseif m.kind == SPACED then forget(m) end
  local more
  if m.kind == BUCKET then more = at_once(m, parts) - max(m.s.full - now, 0) / m.ns_per_unit
  else more = sum(parts) - m.s.used end
  if more > 0 then absorb(m, {more}) end
end

-- All kinds

local function wrap(i)
  local s = state.accounts[i].meter
  -- Texts, as the last message has stored them. A meter that this one has begun has tables.
  if type(s.low) == 'string' then s.low = listed(s.low) end
  if type(s.log) == 'string' then s.log = listed(s.log) end
  local kind = SPACED
  if s.rule == 'slots' then kind = SLOTS
  elseif s.rule == 'window' and s.anchor then kind = WINDOW
  elseif s.rule == 'bucket' and not s.spread then kind = BUCKET end
  local m = {s = s, kind = kind}
  take(m)
  meters[i] = m
  return m
end

local function begin(s, headroom, gentle)          -- a meter for the quota in `s`, with nothing used
  if s.rule == 'slots' then s.headroom, s.used = 0, 0
  elseif s.rule == 'window' and s.anchor then s.headroom, s.used = min(headroom, s.period / 20), 0
  else
    s.headroom, s.full, s.sequence, s.low = headroom, now - FULL_WAIT, 0, {}
    if s.rule ~= 'bucket' or s.spread then s.log, s.used = {}, 0
    elseif gentle and s.period <= LONG_S then s.opened = small_burst(s) * (s.amount / s.period) end
  end
  return s
end

local function replace(i, s)                       -- the new meter starts with what was used of the old one
  local old = meters[i]
  state.accounts[i].meter = s
  local m, before = wrap(i), old.s
  if s.full and before.full then
    s.full, s.sequence, s.low = before.full, before.sequence, before.low
    if before.ceiling and before.ceiling < 1 then    -- which the new one has not learned
      s.full = now + ceil(max(s.full - now, 0) * before.ceiling)
      for k = 2, #s.low, 2 do s.low[k] = floor(s.low[k] * before.ceiling) end
    end
    if s.opened then                                 -- it refills evenly from there
      s.opened = max(s.opened, (s.full - now) / m.ns_per_unit)
      widen(m)
    end
    if s.log and before.log then s.log, s.used = before.log, before.used end
  elseif m.kind == old.kind then
    s.used, s.start, s.stop = before.used, before.start, before.stop
  end
end

local function parse(line)
  local unit, amount, period, burst, rule, anchor = string.match(line, '^(%S+) (%S+) (%S+) (%S+) (%S+) (%S+)$')
  local s = {unit = unit, amount = tonumber(amount), period = tonumber(period), burst = tonumber(burst), rule = rule}
  if anchor ~= '-' then s.anchor = anchor end
  return unit .. '/' .. period, s
end

