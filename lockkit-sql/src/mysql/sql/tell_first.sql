-- tell_first
-- ? own inbox, namespace, name, namespace, name
-- The same of the process whose place is the first.
UPDATE lockkit_bell FORCE INDEX (PRIMARY)
   SET told = IF(inbox = ?, -TIMESTAMPDIFF(MICROSECOND, '1970-01-01', SYSDATE(6)), TIMESTAMPDIFF(MICROSECOND, '1970-01-01', SYSDATE(6))),
       expires = TIMESTAMPDIFF(MICROSECOND, '1970-01-01', SYSDATE(6)) + 10000000,
       inbox = LAST_INSERT_ID(inbox)
 WHERE namespace = ? AND name = ? AND told = 0
   AND expires > TIMESTAMPDIFF(MICROSECOND, '1970-01-01', SYSDATE(6))
   AND inbox = (SELECT p.inbox FROM lockkit_place AS p FORCE INDEX (lockkit_place_order)
                 WHERE p.namespace = ? AND p.name = ?
                   AND p.expires > TIMESTAMPDIFF(MICROSECOND, '1970-01-01', SYSDATE(6))
                 ORDER BY p.arrival LIMIT 1)
