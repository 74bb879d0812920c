-- ARGV    the lock, the bucket, what is known of its holder
-- Answer  {missing for locks, for waiting: nothing is needed, for looking}
local lock, bucket, holder = unpack(ARGV)
local keys = table.concat({lock, bucket, holder}, ' ')
return {
  missing({
    'evalsha hash 3 ' .. keys,
    'eval script 3 ' .. keys,
    'time',
    'exists ' .. bucket,
    'hmget ' .. bucket .. ' field',
    'hset ' .. bucket .. ' field value',
    'get ' .. lock,
    'pttl ' .. lock,
    'set ' .. lock .. ' value',
    'pexpire ' .. lock .. ' 1',
    'del ' .. lock,
  }),
  missing({}),
  missing({'scan 0', 'getrange ' .. lock .. ' 0 51'}),
}
