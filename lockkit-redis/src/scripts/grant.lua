-- Put after keys.lua and before each script that begins a hold.

-- Gives the lock to `grantee` until `expiry`, with all that there is of a hold. The bucket comes
-- first: where memory has run out, a script's first writing is refused and no later one.
local function grant(grantee, token, now, expiry)
  redis.call('HSET', bucket, 'layout', '1', 'token', token)
  redis.call('HSET', lock, 'owner', string.sub(grantee, 1, 32), 'token', token,
    'label', string.sub(grantee, 51), 'since', now)
  if type(redis.pcall('PEXPIREAT', lock, expiry)) == 'table' then
    -- Without the right to it. A hold without an end would never go.
    redis.call('DEL', lock)
    redis.call('PEXPIREAT', lock, expiry)
  end
end
