-- Takes the lock if nobody holds it, or if `owner` has it already.
--
-- ARGV    the owner, the TTL in milliseconds, the label
-- Answer  {1, token, TTL} if granted, {0, nothing, milliseconds that the holder has left or -1} if not
local owner, ttl = ARGV[1], tonumber(ARGV[2])
local hold = find_hold()
if is_of(hold, owner) then
  -- Written even where nothing changes, so that a replica never says yes.
  extend(math.max(ttl, hold.remaining))
  return {1, hold.token, ttl}
end
if hold then return {0, false, hold.remaining} end

local time, now = clock()
local token, refusal = next_token(bucket, time)
if not token then return refusal end
-- The bucket comes first: where memory has run out, a script's first writing is refused and no
-- later one.
redis.call('HSET', bucket, 'layout', '1', 'token', token)
redis.call('SET', lock, owner .. '.' .. token, 'PX', ttl)
redis.call('SET', holder, owner .. ' ' .. now .. ' ' .. ARGV[3], 'PX', ttl)
return {1, token, ttl}
