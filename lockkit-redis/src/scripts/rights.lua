-- ARGV    the lock, the places in order of arrival, the places by deadline, the bucket, the channel
-- Answer  {missing for locks, for waiting without polling, for looking}, by the names that ACL
--         rules have
local lock, queue, deadlines, bucket, channel = unpack(ARGV)
local keys = table.concat({lock, queue, deadlines, bucket}, ' ')

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
  missing({
    string.lower(PUBLISH) .. ' ' .. channel .. ' message',
    string.lower(SUBSCRIBE) .. ' ' .. channel,
    string.lower(UNSUBSCRIBE) .. ' ' .. channel,
  }),
  missing({'scan 0', 'pubsub|' .. string.lower(NUMSUB) .. ' ' .. channel}),
}
