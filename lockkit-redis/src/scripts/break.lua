-- Ends the hold, and does for those who wait what a release does.
--
-- ARGV    the owner whose hold it must be, or '' for whoever holds
-- Answer  the hold as it was, see `told`; nothing if there was no such hold
local hold, refusal = find_hold()
if refusal then return refusal end
if not hold or (owner ~= '' and hold.owner ~= owner) then return false end
local _, now = clock()
free()
return told(hold, now)
