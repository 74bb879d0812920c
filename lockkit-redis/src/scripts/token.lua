-- What time it is, and the tokens that follow from it. Put before each script that needs either.

-- The server's time in microseconds, exact as a Lua number until the year 2255, and in
-- milliseconds, in which expiries are counted.
local function clock()
  local time = redis.call('TIME')
  return time[1] * 1000000 + time[2], time[1] * 1000 + math.floor(time[2] / 1000)
end

-- The next fencing token of `bucket`; or nothing, and why there is none.
local function next_token(bucket, time)
  local known = redis.pcall('HMGET', bucket, 'layout', 'token')
  if known.err then return nil, known end
  local layout, last = known[1], known[2]
  if not layout and not last and redis.call('EXISTS', bucket) == 0 then
    return string.format('%.0f', time)
  end
  if not layout or not last or not string.match(last, '^%d+$') then
    return nil, redis.error_reply('FOREIGN the token counter of the bucket is none of lockkit')
  end
  if layout ~= '1' then
    return nil, redis.error_reply('LAYOUT the bucket has a layout that this version does not know')
  end
  local token = math.max(tonumber(last) + 1, time)
  if token >= 9007199254740992 then -- 2^53, from where on a Lua number skips some
    return nil, redis.error_reply('CAPACITY the fencing tokens of the bucket are used up')
  end
  return string.format('%.0f', token)
end
