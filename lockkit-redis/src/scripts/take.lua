-- Takes the lock if nobody holds it or waits before `owner`, or if `owner` has it already.
--
-- ARGV    the channel, the claimant, the TTL in milliseconds, '1' to leave a place when refused
-- Answer  {1, token, TTL} if granted, {0, token of the holder, milliseconds it has left} if not
local ttl, wants_place = tonumber(ARGV[3]), ARGV[4] == '1'
local time, now = clock()

local hold, refusal = find_hold()
if refusal then return refusal end

if hold and hold.owner == owner then
  -- Written even where nothing changes, so that a replica never says yes.
  redis.call('PEXPIRE', lock, math.max(ttl, hold.remaining))
  return {1, hold.token, ttl}
end

local first, deadline = first_place(now)
if not hold then
  local token, refusal = next_token(bucket, time)
  if not token then return refusal end
  if not first or first == claimant then
    grant(claimant, token, now, now + ttl)
    if first then leave(claimant) end
    return {1, token, ttl}
  end
  hand_over(first, token, now, deadline)
  hold = {token = token, remaining = deadline - now}
end

if wants_place then
  redis.call('ZADD', deadlines, now + ttl, claimant)
  if not redis.call('ZSCORE', queue, claimant) then
    local last = redis.call('ZRANGE', queue, -1, -1, 'WITHSCORES')[2]
    -- By the clock, so that it tells when who came; in order, whatever the clock does.
    redis.call('ZADD', queue, math.max((last or 0) + 1, time), claimant)
  end
  -- Both keys end with the place that lives longest.
  if redis.call('PTTL', queue) < ttl then
    redis.call('PEXPIREAT', queue, now + ttl)
    redis.call('PEXPIREAT', deadlines, now + ttl)
  end
end
return {0, hold.token, hold.remaining}
