-- Removes every trace of `owner`. Whether or not the hold ends by it, a free lock is then passed on:
-- `owner` may be the one who was told of that.
--
-- ARGV    the claimant
-- Answer  1 if `owner` held the lock until now, 0 if not
local is_held = redis.call('HGET', lock, 'owner') == owner
leave(claimant)
if is_held or redis.call('EXISTS', lock) == 0 then free() end
return is_held and 1 or 0
