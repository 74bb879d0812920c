-- Put after keys.lua, token.lua and grant.lua and before each script that ends a hold or begins
-- one.
--
-- ARGV  the claimant, ...
--
-- A claimant is the owner's id, the inbox where it hears its news, and the label, with a space
-- between them.
--
-- Every reading that may find something foreign comes before the first writing, because what a
-- script has written stays written when it fails later.
local claimant = ARGV[1]
local owner = string.sub(claimant, 1, 32)

-- Tells `listener` alone. A hint, so that an owner who may not publish can still release: waiters
-- ask again by timer.
local function tell(listener, news)
  local inbox = string.sub(bucket, 1, -7) .. 'inbox:' .. string.sub(listener, 34, 49)
  redis.pcall(PUBLISH, inbox, news)
end

local function leave(...)
  redis.call('ZREM', queue, ...)
  redis.call('ZREM', unordered, ...)
  redis.call('ZREM', deadlines, ...)
end

-- Drops dead places. A thousand are enough for one passing, and as many as Lua passes to a call
-- without complaint.
local function sweep(now)
  local dead = redis.call('ZRANGEBYSCORE', deadlines, '-inf', now, 'LIMIT', 0, 1000)
  if #dead > 0 then leave(unpack(dead)) end
end

-- Who has the first living one of `places`, and its deadline; drops those before it.
local function first_place(places, now)
  local first = redis.call('ZRANGE', places, 0, 0)[1]
  while first do
    -- None where the server evicted the key.
    local deadline = tonumber(redis.call('ZSCORE', deadlines, first) or nil)
    if deadline and deadline > now then return first, deadline end
    leave(first)
    sweep(now)
    first = redis.call('ZRANGE', places, 0, 0)[1]
  end
end

-- Gives the lock, whether or not somebody has it, to the first place, for as long as that place would
-- have lived: its owner vouches from the ask that set the deadline. The place goes first: where memory
-- has run out, that is not refused, nor then is what comes after.
local function hand_over(first, token, now, deadline)
  redis.call('ZREM', queue, first)
  redis.call('ZREM', deadlines, first)
  grant(first, token, now, deadline)
  tell(first, 'granted ' .. string.sub(first, 1, 32) .. ' ' .. token)
end

-- Tells one of those who wait in no order that the lock is free. Until it asks it has only its
-- deadline, by which it is known then, and nobody waits for it: the next release tells the next.
local function wake(first)
  redis.call('ZREM', unordered, first)
  tell(first, 'free ' .. string.sub(first, 1, 32))
end

-- Ends the hold, if there is one, and passes the lock on: to the first place, or else one of those
-- who wait in no order may try.
local function free()
  if redis.call('EXISTS', queue, unordered) == 0 then
    redis.call('DEL', lock)
    return
  end
  local time, now = clock()
  local first, deadline = first_place(queue, now)
  -- Without a token there is no grant; the first place learns why when it asks.
  local token = first and next_token(bucket, time)
  local sleeper = not first and first_place(unordered, now)
  if token then return hand_over(first, token, now, deadline) end
  redis.call('DEL', lock)
  if first then
    tell(first, 'free ' .. string.sub(first, 1, 32))
  elseif sleeper then
    wake(sleeper)
  end
end
