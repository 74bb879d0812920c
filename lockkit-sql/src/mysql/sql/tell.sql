-- tell
-- ? own inbox, namespace, name, whether it is to be the first place's, namespace, name, own inbox,
--   whether somebody waits there
-- Notes that a process is told: that of the first place, or that which has waited longest of those that
-- are to be. The id of the reply is its inbox. Who tells itself has heard. Nobody is told where no
-- writes are allowed any more.
UPDATE lockkit_bell FORCE INDEX (PRIMARY)
   SET told = IF(inbox = ?, -TIMESTAMPDIFF(MICROSECOND, '1970-01-01', SYSDATE(6)), TIMESTAMPDIFF(MICROSECOND, '1970-01-01', SYSDATE(6))),
       expires = TIMESTAMPDIFF(MICROSECOND, '1970-01-01', SYSDATE(6)) + 10000000,
       inbox = LAST_INSERT_ID(inbox)
 WHERE namespace = ? AND name = ? AND told = 0
   AND CAST(@@global.read_only AS CHAR) IN ('0', 'OFF')
   AND expires > TIMESTAMPDIFF(MICROSECOND, '1970-01-01', SYSDATE(6))
   AND (NOT ? OR inbox = (SELECT p.inbox FROM lockkit_place AS p FORCE INDEX (lockkit_place_order)
                           WHERE p.namespace = ? AND p.name = ?
                             AND p.expires > TIMESTAMPDIFF(MICROSECOND, '1970-01-01', SYSDATE(6))
                           ORDER BY p.arrival LIMIT 1))
 ORDER BY inbox = ? AND NOT ?, since LIMIT 1
