-- Put after lock.lua and token.lua and before each script that ends a hold or begins one.
--
-- ARGV  the channel, the claimant, ...
--
-- A claimant is the owner's id, a space, and the label.
--
-- Every reading that may find something foreign comes before the first writing, because what a
-- script has written stays written when it fails later.
local claimant = ARGV[2]
local owner = string.sub(claimant, 1, 32)

-- Gives the lock, which nobody holds, to `grantee` until `expiry`. The bucket comes first: where
-- memory has run out, a script's first writing is refused and no later one.
local function grant(grantee, token, now, expiry)
  redis.call('HSET', bucket, 'layout', '1', 'token', token)
  redis.call('HSET', lock, 'owner', string.sub(grantee, 1, 32), 'token', token,
    'label', string.sub(grantee, 34), 'since', now)
  redis.call('PEXPIREAT', lock, expiry)
end

local function leave(...)
  redis.call('ZREM', queue, ...)
  redis.call('ZREM', deadlines, ...)
end

-- Who has the first living place, and its deadline; drops dead places.
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
local function hand_over(first, token, now, deadline)
  grant(first, token, now, deadline)
  leave(first)
  -- A hint, so that an owner who may not publish can still release: waiters ask again by timer.
  redis.pcall(PUBLISH, channel, 'granted ' .. string.sub(first, 1, 32) .. ' ' .. token)
end

-- What a hand-over needs; nothing if there is nobody to hand over to. Without a token there is no
-- grant either; the first place then learns why when it asks.
local function successor()
  if redis.call('EXISTS', queue) == 0 then return nil end
  local time, now = clock()
  local first, deadline = first_place(now)
  local token = first and next_token(bucket, time)
  if token then return first, token, now, deadline end
end

-- Ends the hold. The lock goes to the first place, and if there is none, whoever listens may try.
local function free()
  local first, token, now, deadline = successor()
  redis.call('DEL', lock)
  if first then
    hand_over(first, token, now, deadline)
  else
    redis.pcall(PUBLISH, channel, 'released')
  end
end
