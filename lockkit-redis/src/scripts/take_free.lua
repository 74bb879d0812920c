-- Takes the lock at once where nobody holds it or waits for it, as in most asks, which need nothing
-- of what comes after. Arguments and answer are those of take.lua.
if redis.call('EXISTS', lock, queue, unordered, deadlines) == 0 then
  local time, now = clock()
  local token, refusal = next_token(bucket, time)
  if not token then return refusal end
  local ttl = tonumber(ARGV[2])
  grant(ARGV[1], token, now, now + ttl)
  return {1, token, ttl, 0}
end

