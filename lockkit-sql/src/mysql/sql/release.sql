-- ? namespace, name, owner
-- Ends the hold. The id of the reply is 1 if it stood until now, 2 if it had run out, and 0 if it
-- was not there; 4 more if somebody has a place, 8 more if somebody listens.
-- Where no writes are allowed any more this fails, as in `renew.sql`.
UPDATE lockkit_lock
   SET expires = IF(LAST_INSERT_ID(
           IF(expires > TIMESTAMPDIFF(MICROSECOND, '1970-01-01', SYSDATE(6)), 1, 2)
           + IF(queued > TIMESTAMPDIFF(MICROSECOND, '1970-01-01', SYSDATE(6)), 4, 0)
           + IF(awaited > TIMESTAMPDIFF(MICROSECOND, '1970-01-01', SYSDATE(6)), 8, 0)), 0, 0),
       since = IF(CAST(@@global.read_only AS CHAR) IN ('0', 'OFF'),
                  TIMESTAMPDIFF(MICROSECOND, '1970-01-01', SYSDATE(6)), NULL),
       owner = NULL, label = NULL
 WHERE namespace = ? AND name = ? AND owner = ?
