-- How news travel: by channels that the whole server has.
local PUBLISH, SUBSCRIBE, UNSUBSCRIBE = 'PUBLISH', 'SUBSCRIBE', 'UNSUBSCRIBE'
local NUMSUB = 'NUMSUB'
