-- Takes the lock if nobody holds it or waits before `owner`, or if `owner` has it already.
--
-- ARGV    the channel, the owner, the TTL in milliseconds, '1' to leave a place when refused
-- Answer  {1, token, TTL} if granted, {0, token of the holder, milliseconds it has left} if not
local ttl, wants_place = tonumber(ARGV[3]), ARGV[4] == '1'
local time, now = clock()

local remaining, holder, token = redis.call('PTTL', lock), nil, nil
if remaining ~= -2 then -- there is one
  local held = redis.call('HMGET', lock, 'owner', 'token')
  holder, token = held[1], held[2]
  if not holder or not token or not string.match(token, '^%d+$') or remaining == -1 then
    return redis.error_reply('FOREIGN the key of the lock holds something else')
  end
end

if holder == owner then
  -- Written even where nothing changes, so that a replica never says yes.
  redis.call('PEXPIRE', lock, math.max(ttl, remaining))
  return {1, token, ttl}
end

local first, deadline = first_place(now)
if not holder then
  local refusal
  token, refusal = next_token(time)
  if not token then return refusal end
  if not first or first == owner then
    grant(owner, token, now + ttl)
    if first then leave(owner) end
    return {1, token, ttl}
  end
  hand_over(first, deadline, token)
  remaining = deadline - now
end

if wants_place then
  redis.call('ZADD', deadlines, now + ttl, owner)
  if not redis.call('ZSCORE', queue, owner) then
    local last = redis.call('ZRANGE', queue, -1, -1, 'WITHSCORES')[2]
    redis.call('ZADD', queue, (last or 0) + 1, owner)
  end
  -- Both keys end with the place that lives longest.
  if redis.call('PTTL', queue) < ttl then
    redis.call('PEXPIREAT', queue, now + ttl)
    redis.call('PEXPIREAT', deadlines, now + ttl)
  end
end
return {0, token, remaining}
