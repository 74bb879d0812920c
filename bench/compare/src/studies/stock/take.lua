-- KEYS: the stock. Answers 1 for a piece, 0 for none.
if tonumber(redis.call('GET', KEYS[1])) > 0 then
  redis.call('DECR', KEYS[1])
  return 1
end
return 0
