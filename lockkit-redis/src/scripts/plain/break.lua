-- Ends the hold, of whatever client it is.
--
-- ARGV    the owner whose hold it must be, or '' for whoever holds
-- Answer  the hold as it was, see `told`; nothing if there was no such hold
local hold = find_hold()
if not hold or (ARGV[1] ~= '' and hold.owner ~= ARGV[1]) then return false end
local was = told(hold)
redis.call('DEL', lock, holder)
return was
