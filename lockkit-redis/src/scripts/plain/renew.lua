-- Makes the lock last for another full TTL if `owner` holds it. Never shortens, never re-creates.
--
-- ARGV    the owner, the TTL in milliseconds
-- Answer  1 if held, 0 if not
local hold = find_hold()
if not is_of(hold, ARGV[1]) then return 0 end
extend(math.max(tonumber(ARGV[2]), hold.remaining))
return 1
