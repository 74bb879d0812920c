-- Put after keys.lua, token.lua and grant.lua and before each script that ends a hold or begins
-- one.
--
-- ARGV  the claimant, ...
--
-- A claimant is the owner's id, the inbox where it hears its news, and the label, with a space
-- between them; a '?' before the inbox of one that is only told of a release and handed nothing.
--
-- Every reading that may find something foreign comes before the first writing, because what a
-- script has written stays written when it fails later.
local claimant = ARGV[1]
local owner = string.sub(claimant, 1, 32)

local function inbox_of(listener)
  return string.sub(bucket, 1, -7) .. 'inbox:' .. string.sub(listener, 34, 49)
end

-- Tells `listener` alone; whether the user may do so. Who may not can still release: waiters ask again
-- by timer.
local function tell(listener, news)
  local answer = redis.pcall(PUBLISH, inbox_of(listener), news)
  return type(answer) == 'number'
end

-- Whether the process of `listener` is there to hear its news; nothing if the user may not ask that.
local function hears(listener)
  local counts = redis.pcall('PUBSUB', NUMSUB, inbox_of(listener))
  if not counts.err then return counts[2] > 0 end
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

-- Gives the lock, whether or not somebody has it, to a place, for as long as that place would have
-- lived: its owner vouches from the ask that set the deadline. Whether that is so: where it cannot be
-- told, it is not unless the places are in order, as it is nobody else's turn then. The place goes
-- first: where memory has run out, that is not refused, nor then is what comes after.
local function hand_over(places, first, token, now, deadline)
  redis.call('ZREM', places, first)
  grant(first, token, now, deadline)
  local is_told = tell(first, 'granted ' .. string.sub(first, 1, 32) .. ' ' .. token)
  if not is_told and places ~= queue then return false end
  redis.call('ZREM', deadlines, first)
  return true
end

-- Who is served of those who wait in no order, its deadline, and whether it can be handed the lock.
-- Who is dead hears nothing and is passed over; it has only its deadline then, by which one that is
-- alive after all is known when it asks.
local function first_listener(now)
  local first, deadline = first_place(unordered, now)
  while first do
    local is_there = hears(first)
    if is_there ~= false then
      return first, deadline, is_there and string.sub(first, 33, 33) == ' '
    end
    redis.call('ZREM', unordered, first)
    first, deadline = first_place(unordered, now)
  end
end

-- Ends the hold, if there is one, and passes the lock on: to the first place, or else to one of those
-- who wait in no order. Who is told that the lock is free has only its deadline until it asks, and
-- nobody waits for it: the next release tells the next.
local function free()
  if redis.call('EXISTS', queue, unordered) == 0 then
    redis.call('DEL', lock)
    return
  end
  local time, now = clock()
  local places, is_served = queue, true
  local first, deadline = first_place(queue, now)
  if not first then
    places = unordered
    first, deadline, is_served = first_listener(now)
  end
  -- Without a token there is no grant; who is told learns why when it asks.
  local token = first and is_served and next_token(bucket, time)
  if token and hand_over(places, first, token, now, deadline) then return end
  redis.call('DEL', lock)
  if not first then return end
  redis.call('ZREM', unordered, first)
  tell(first, 'free ' .. string.sub(first, 1, 32))
end
