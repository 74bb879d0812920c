-- Shared by take.lua and release.lua, and put before each of them.
--
-- KEYS  the lock, the places in order of arrival, the places by deadline, the bucket
-- ARGV  the channel, the owner who asks, ...
--
-- Every reading that may find something foreign comes before the first writing, because what a
-- script has written stays written when it fails later.
local lock, queue, deadlines, bucket = KEYS[1], KEYS[2], KEYS[3], KEYS[4]
local channel, owner = ARGV[1], ARGV[2]

-- The server's time in microseconds, exact as a Lua number until the year 2255, and in
-- milliseconds, in which expiries are counted.
local function clock()
  local time = redis.call('TIME')
  return time[1] * 1000000 + time[2], time[1] * 1000 + math.floor(time[2] / 1000)
end

-- The next fencing token of the bucket; or nothing, and why there is none.
local function next_token(now)
  local known = redis.pcall('HMGET', bucket, 'layout', 'token')
  if known.err then return nil, known end
  local layout, last = known[1], known[2]
  if not layout and not last and redis.call('EXISTS', bucket) == 0 then
    return string.format('%.0f', now)
  end
  if not layout or not last or not string.match(last, '^%d+$') then
    return nil, redis.error_reply('FOREIGN the token counter of the bucket is none of lockkit')
  end
  if layout ~= '1' then
    return nil, redis.error_reply('LAYOUT the bucket has a layout that this version does not know')
  end
  local token = math.max(tonumber(last) + 1, now)
  if token >= 9007199254740992 then -- 2^53, from where on a Lua number skips some
    return nil, redis.error_reply('CAPACITY the fencing tokens of the bucket are used up')
  end
  return string.format('%.0f', token)
end

-- Gives the lock, which nobody holds, to `holder` until `expiry`. The bucket comes first: where
-- memory has run out, a script's first writing is refused and no later one.
local function grant(holder, token, expiry)
  redis.call('HSET', bucket, 'layout', '1', 'token', token)
  redis.call('HSET', lock, 'owner', holder, 'token', token)
  redis.call('PEXPIREAT', lock, expiry)
end

local function leave(...)
  redis.call('ZREM', queue, ...)
  redis.call('ZREM', deadlines, ...)
end

-- The owner of the first living place and the place's deadline; drops dead places.
local function first_place(now)
  local first = redis.call('ZRANGE', queue, 0, 0)[1]
  if not first then return nil end
  -- Also those behind a living one, lest they pile up while it waits. A thousand are enough for
  -- one passing, and as many as Lua passes to a call without complaint.
  local dead = redis.call('ZRANGEBYSCORE', deadlines, '-inf', now, 'LIMIT', 0, 1000)
  if #dead > 0 then leave(unpack(dead)) end
  repeat
    first = redis.call('ZRANGE', queue, 0, 0)[1]
    if not first then return nil end
    -- None where the server evicted the key.
    local deadline = tonumber(redis.call('ZSCORE', deadlines, first) or nil)
    if deadline and deadline > now then return first, deadline end
    leave(first)
  until false
end

-- Gives the lock, which nobody holds, to the first place, for as long as that place would have
-- lived: its owner vouches from the ask that set the deadline.
local function hand_over(first, deadline, token)
  grant(first, token, deadline)
  leave(first)
  -- A hint, so that an owner who may not publish can still release: waiters ask again by timer.
  redis.pcall('PUBLISH', channel, 'granted ' .. first .. ' ' .. token)
end
