-- How news travel: by channels that the whole server has.
local PUBLISH, SUBSCRIBE, UNSUBSCRIBE, NUMSUB = 'PUBLISH', 'SUBSCRIBE', 'UNSUBSCRIBE', 'NUMSUB'
