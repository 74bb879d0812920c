-- Refuses a fencing token that is lower than the highest that the gate has seen, and else remembers
-- it. Stands before what a holder writes, in one script with it.
--
-- KEYS[1]  the gate
-- ARGV[1]  the token, in decimal
do
  local gate, token = KEYS[1], ARGV[1]
  local function is_token(text)
    return string.match(text, '^[1-9]%d*$') and #text < 20
  end
  if not is_token(token) then
    return redis.error_reply('TOKEN what is to pass the gate is no fencing token')
  end
  local highest = redis.call('GET', gate)
  if highest and not is_token(highest) then
    return redis.error_reply('FOREIGN the key of the gate holds something else')
  end
  -- As texts, since a Lua number skips some from 2^53 on.
  if highest and (#highest > #token or #highest == #token and highest > token) then
    return redis.error_reply('STALE ' .. highest)
  end
  -- Written even where nothing changes, so that a replica never says yes.
  redis.call('SET', gate, token)
end
