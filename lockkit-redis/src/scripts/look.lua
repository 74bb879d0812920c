-- How the lock stands. Only reads: what has run out is left out, and left to the next who asks.
--
-- ARGV    the channel
-- Answer  {hold or nothing, see `told`;
--          {claimant, milliseconds since the first ask} for each living place, in order;
--          number of connections that listen, or nothing where the user may not know}
local hold, refusal = find_hold()
if refusal then return refusal end
local time, now = clock()

local alive = {}
for _, claimant in ipairs(redis.call('ZRANGEBYSCORE', deadlines, '(' .. now, '+inf')) do
  alive[claimant] = true
end
local places, queued = {}, redis.call('ZRANGE', queue, 0, -1, 'WITHSCORES')
for at = 1, #queued, 2 do
  local claimant, arrival = queued[at], queued[at + 1]
  if alive[claimant] then
    table.insert(places, {claimant, math.max(0, math.floor((time - arrival) / 1000))})
  end
end

local listeners = redis.pcall('PUBSUB', NUMSUB, channel)
return {hold and told(hold, now) or false, places, listeners[2] or false}
