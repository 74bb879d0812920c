-- Put after keys.lua and before each script that asks who holds the lock.

-- The hold that there is; or nothing, and why if that is not because the lock is free.
local function find_hold()
  local remaining = redis.call('PTTL', lock)
  if remaining == -2 then return nil end
  local owner, token, label, since =
    unpack(redis.call('HMGET', lock, 'owner', 'token', 'label', 'since'))
  local is_ours = owner and #owner == 32 and token and string.match(token, '^%d+$')
  if not is_ours or remaining == -1 then
    return nil, redis.error_reply('FOREIGN the key of the lock holds something else')
  end
  return {owner = owner, token = token, label = label, since = since, remaining = remaining}
end

-- A hold as it is told to those who look: owner, token, label, milliseconds since the grant,
-- milliseconds left.
local function told(hold, now)
  local since = tonumber(hold.since)
  local age = since and math.max(0, now - since)
  return {hold.owner, hold.token, hold.label, age or false, hold.remaining}
end
