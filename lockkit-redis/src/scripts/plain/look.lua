-- Answer  the hold, see `told`; nothing if there is none
local hold = find_hold()
return hold and told(hold) or false
