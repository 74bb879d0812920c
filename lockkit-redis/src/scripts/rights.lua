-- ARGV    the lock, the places in order of arrival, the places in no order, the places by deadline,
--         the bucket, an inbox, and whatever else is sent for locks
-- Answer  {missing for locks, for waiting without polling, for looking}, by the names that ACL
--         rules have
local lock, queue, unordered, deadlines, bucket, inbox = unpack(ARGV)
local keys = table.concat({lock, queue, unordered, deadlines, bucket}, ' ')

return {
  missing({
    'evalsha hash 5 ' .. keys,
    'eval script 5 ' .. keys,
    'time',
    'exists ' .. table.concat({lock, queue, unordered, deadlines}, ' '),
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
    'zcard ' .. unordered,
    unpack(ARGV, 7)
  }),
  missing({
    string.lower(PUBLISH) .. ' ' .. inbox .. ' message',
    string.lower(SUBSCRIBE) .. ' ' .. inbox,
    string.lower(UNSUBSCRIBE) .. ' ' .. inbox,
    'pubsub|' .. string.lower(NUMSUB) .. ' ' .. inbox,
  }),
  missing({'scan 0'}),
}
