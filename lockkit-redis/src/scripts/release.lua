-- Removes every trace of `owner`. Whether or not the hold ends by it, a free lock then goes to the
-- first place.
--
-- ARGV    the channel, the claimant
-- Answer  1 if `owner` held the lock until now, 0 if not
if redis.call('HGET', lock, 'owner') == owner then
  free()
  return 1
end

leave(claimant)
if redis.call('EXISTS', lock) == 0 then
  local first, token, now, deadline = successor()
  if first then hand_over(first, token, now, deadline) end
end
return 0
