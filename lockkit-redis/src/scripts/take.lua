-- Takes the lock if nobody holds it or waits before `owner`, or if `owner` has it already.
--
-- ARGV    the claimant, the TTL in milliseconds, and which place to leave when refused: one in
--         'order', in 'no order', or ''
-- Answer  {1, token, TTL, 0} if granted; if not, {0, token of the holder, milliseconds it has left,
--         how many wait in no order, those included who were passed over}
local ttl, wish = tonumber(ARGV[2]), ARGV[3]
local time, now = clock()

local hold, refusal = find_hold()
if refusal then return refusal end

if hold and hold.owner == owner then
  -- Written even where nothing changes, so that a replica never says yes.
  redis.call('PEXPIRE', lock, math.max(ttl, hold.remaining))
  return {1, hold.token, ttl, 0}
end

-- Whatever comes of it, a release writes to these keys, if the first has something, and nothing may be
-- written before they are known to be ours.
if redis.call('ZCARD', unordered) > 0 then redis.call('ZCARD', deadlines) end
local first, deadline = first_place(queue, now)
-- Also places behind a living one, lest they pile up while it waits.
if first or wish ~= '' then sweep(now) end
local has_asked = wish ~= '' and redis.call('ZSCORE', deadlines, claimant)
if not hold then
  local token, refusal = next_token(bucket, time)
  if not token then return refusal end
  if not first or first == claimant then
    grant(claimant, token, now, now + ttl)
    if has_asked then leave(claimant) end
    return {1, token, ttl, 0}
  end
  hand_over(queue, first, token, now, deadline)
  hold = {token = token, remaining = deadline - now}
end
if wish == '' then return {0, hold.token, hold.remaining, 0} end

local places = wish == 'order' and queue or unordered
redis.call('ZADD', deadlines, now + ttl, claimant)
if not redis.call('ZSCORE', places, claimant) then
  if has_asked and places == unordered then
    -- It was told that the lock is free, and another was faster; or it was passed over, since it did not
    -- listen just then. It is the next to be served.
    local front = redis.call('ZRANGE', places, 0, 0, 'WITHSCORES')[2]
    redis.call('ZADD', places, math.min((front or time) - 1, time), claimant)
  else
    local last = redis.call('ZRANGE', places, -1, -1, 'WITHSCORES')[2]
    -- By the clock, so that it tells when who came; in order, whatever the clock does.
    redis.call('ZADD', places, math.max((last or 0) + 1, time), claimant)
  end
end
-- The keys end with the place that lives longest.
for _, key in ipairs({places, deadlines}) do
  if redis.call('PTTL', key) < ttl then redis.call('PEXPIREAT', key, now + ttl) end
end
local waiting = redis.call('ZCARD', deadlines) - redis.call('ZCARD', queue)
return {0, hold.token, hold.remaining, waiting}
