-- Put before each script that is given these keys.
--
-- KEYS  the lock, the places in order of arrival, the places in no order, the places by deadline,
--       the bucket
local lock, queue, unordered, deadlines, bucket = unpack(KEYS)

