-- ? whether rows with an owner are left alone
-- What nobody has used for more than a day, some at a time. No lease is longer than a day, so a
-- token that begins anew, from the clock, is still higher than the last one given.
SELECT namespace, name FROM lockkit_lock
 WHERE (owner IS NULL OR NOT ?)
   AND since < TIMESTAMPDIFF(MICROSECOND, '1970-01-01', SYSDATE(6)) - 25 * 3600000000
   AND expires < TIMESTAMPDIFF(MICROSECOND, '1970-01-01', SYSDATE(6)) - 25 * 3600000000
   AND queued < TIMESTAMPDIFF(MICROSECOND, '1970-01-01', SYSDATE(6)) - 25 * 3600000000
   AND token < TIMESTAMPDIFF(MICROSECOND, '1970-01-01', SYSDATE(6)) - 25 * 3600000000
 LIMIT 1000
