-- Removes every trace of `owner`. A lock that is free then goes to the first place, and if there
-- is none, whoever listens may try.
--
-- ARGV    the channel, the owner
-- Answer  1 if `owner` held the lock until now, 0 if not
local holds = redis.call('HGET', lock, 'owner') == owner
if holds then redis.call('DEL', lock) else leave(owner) end

if holds or redis.call('EXISTS', lock) == 0 then
  local first, deadline, token
  if redis.call('EXISTS', queue) == 1 then
    local time, now = clock()
    first, deadline = first_place(now)
    -- Without a token there is no grant; the first place then learns why when it asks.
    token = first and next_token(time)
  end
  if token then
    hand_over(first, deadline, token)
  elseif holds then
    redis.pcall('PUBLISH', channel, 'released')
  end
end
return holds and 1 or 0
