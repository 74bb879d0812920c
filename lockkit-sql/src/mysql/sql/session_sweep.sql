-- Removes rows of locks that nobody has used for more than a day, some at a time.
DELETE FROM lockkit_session
 WHERE since < TIMESTAMPDIFF(MICROSECOND, '1970-01-01', SYSDATE(6)) - 25 * 3600000000
   AND token < TIMESTAMPDIFF(MICROSECOND, '1970-01-01', SYSDATE(6)) - 25 * 3600000000
   AND IS_FREE_LOCK(locked)
 LIMIT 1000
