-- What the driver would send and the user may not. Sends none of it.
--
-- ARGV    the lock, the places in order of arrival, the places by deadline, the bucket, the channel
-- Answer  {missing for locks, for waiting without polling, for looking}, by the names that ACL
--         rules have; nothing where the server cannot tell, before Redis 7.0
if not redis.acl_check_cmd then return false end
local lock, queue, deadlines, bucket, channel = unpack(ARGV)
local keys = table.concat({lock, queue, deadlines, bucket}, ' ')

local function missing(commands)
  local names = {}
  for _, command in ipairs(commands) do
    local words = {}
    for word in string.gmatch(command, '[^ |]+') do table.insert(words, word) end
    -- It raises an error for what the server does not know.
    local known, allowed = pcall(redis.acl_check_cmd, unpack(words))
    if not known or not allowed then
      table.insert(names, string.match(command, '^%S+'))
    end
  end
  return names
end

return {
  missing({
    'evalsha hash 4 ' .. keys,
    'eval script 4 ' .. keys,
    'time',
    'exists ' .. queue,
    'pttl ' .. lock,
    'hget ' .. lock .. ' field',
    'hmget ' .. bucket .. ' field',
    'hset ' .. bucket .. ' field value',
    'del ' .. lock,
    'pexpire ' .. lock .. ' 1',
    'pexpireat ' .. lock .. ' 1',
    'zadd ' .. deadlines .. ' 1 member',
    'zrem ' .. deadlines .. ' member',
    'zrange ' .. queue .. ' 0 0',
    'zrangebyscore ' .. deadlines .. ' 0 1',
    'zscore ' .. deadlines .. ' member',
  }),
  missing({'publish ' .. channel .. ' message', 'subscribe ' .. channel, 'unsubscribe ' .. channel}),
  missing({'scan 0', 'pubsub|numsub ' .. channel}),
}
