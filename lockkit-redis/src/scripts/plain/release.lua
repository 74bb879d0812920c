-- ARGV    the owner
-- Answer  1 if `owner` held the lock until now, 0 if not
local hold = find_hold()
if not is_of(hold, ARGV[1]) then return 0 end
redis.call('DEL', lock, holder)
return 1
