-- Put before each script of the dialect `plain`, but for the one that searches.
--
-- KEYS  the lock, the bucket, what is known of its holder
local lock, bucket, holder = KEYS[1], KEYS[2], KEYS[3]

-- The hold that there is, or nothing. Of a hold of lockkit the value is `OWNER.TOKEN`. Of any other
-- it may be what it likes: it is called by a hash then, unless it looks like an owner's id by itself.
local function find_hold()
  local value = redis.call('GET', lock)
  if not value then return nil end
  local remaining = redis.call('PTTL', lock)
  local owner, token = string.match(value, '^([0-9a-f]+)%.(%d+)$')
  if owner and #owner == 32 and #token < 19 then
    return {owner = owner, token = token, remaining = remaining}
  end
  local is_id = #value == 32 and string.match(value, '^[0-9a-f]+$')
  return {owner = is_id and value or string.sub(redis.sha1hex(value), 1, 32), remaining = remaining}
end

-- Whether it is that of an owner of lockkit's. Others may look like one.
local function is_of(hold, owner)
  return hold and hold.token and hold.owner == owner
end

local function extend(ttl)
  redis.call('PEXPIRE', lock, ttl)
  redis.call('PEXPIRE', holder, ttl)
end

-- A hold as it is told to those who look: owner, token unless it is none of lockkit's, label,
-- milliseconds since the grant, milliseconds left or -1.
local function told(hold)
  local label, age = false, false
  local known = hold.token and redis.pcall('GET', holder)
  if type(known) == 'string' and string.sub(known, 1, 32) == hold.owner then
    local _, now = clock()
    local since, rest = string.match(known, '^%x+ (%d+) (.*)$')
    label, age = rest or false, since and math.max(0, now - since) or false
  end
  return {hold.owner, hold.token or false, label, age, hold.remaining}
end
