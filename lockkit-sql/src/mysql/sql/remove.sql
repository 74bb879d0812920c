-- ? namespace, name, whether a row with an owner is left alone
-- Removes the row if it is idle still: it is locked by now. Not where no writes are allowed any more.
DELETE FROM lockkit_lock
 WHERE namespace = ? AND name = ? AND (owner IS NULL OR NOT ?)
   AND CAST(@@global.read_only AS CHAR) IN ('0', 'OFF')
   AND since < TIMESTAMPDIFF(MICROSECOND, '1970-01-01', SYSDATE(6)) - 25 * 3600000000
   AND expires < TIMESTAMPDIFF(MICROSECOND, '1970-01-01', SYSDATE(6)) - 25 * 3600000000
   AND queued < TIMESTAMPDIFF(MICROSECOND, '1970-01-01', SYSDATE(6)) - 25 * 3600000000
   AND token < TIMESTAMPDIFF(MICROSECOND, '1970-01-01', SYSDATE(6)) - 25 * 3600000000
