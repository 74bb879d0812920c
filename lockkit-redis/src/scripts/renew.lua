-- Makes the lock last for another full TTL if `owner` holds it. Never shortens, never re-creates.
--
-- KEYS    the lock
-- ARGV    the owner, the TTL in milliseconds
-- Answer  1 if held, 0 if not
local ttl = tonumber(ARGV[2])
if redis.call('HGET', KEYS[1], 'owner') ~= ARGV[1] then return 0 end
-- Written even where nothing changes, so that a replica never says yes.
redis.call('PEXPIRE', KEYS[1], math.max(ttl, redis.call('PTTL', KEYS[1])))
return 1
