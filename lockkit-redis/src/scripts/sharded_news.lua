-- How news travel in a cluster: by channels that live in a slot, as keys do.
local PUBLISH, SUBSCRIBE, UNSUBSCRIBE = 'SPUBLISH', 'SSUBSCRIBE', 'SUNSUBSCRIBE'
local NUMSUB = 'SHARDNUMSUB'
