-- How the lock stands. Only reads: what has run out is left out, and left to the next who asks.
--
-- Answer  {hold or nothing, see `told`;
--          {claimant, milliseconds since the first ask} for each living place, in order;
--          number of inboxes that those are told of who wait, in order or not}
local hold, refusal = find_hold()
if refusal then return refusal end
local time, now = clock()

local alive, inboxes, listeners = {}, {}, 0
for _, claimant in ipairs(redis.call('ZRANGEBYSCORE', deadlines, '(' .. now, '+inf')) do
  alive[claimant] = true
  local inbox = string.sub(claimant, 34, 49)
  if not inboxes[inbox] then
    inboxes[inbox] = true
    listeners = listeners + 1
  end
end
local places, queued = {}, redis.call('ZRANGE', queue, 0, -1, 'WITHSCORES')
for at = 1, #queued, 2 do
  local claimant, arrival = queued[at], queued[at + 1]
  if alive[claimant] then
    table.insert(places, {claimant, math.max(0, math.floor((time - arrival) / 1000))})
  end
end

return {hold and told(hold, now) or false, places, listeners}
