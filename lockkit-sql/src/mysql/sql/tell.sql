-- tell
-- ? own inbox, namespace, name
-- Notes that the process is told which has waited longest of those that are to be. The id of the reply
-- is its inbox. Who tells itself has heard.
UPDATE lockkit_bell FORCE INDEX (PRIMARY)
   SET told = IF(inbox = ?, -TIMESTAMPDIFF(MICROSECOND, '1970-01-01', SYSDATE(6)), TIMESTAMPDIFF(MICROSECOND, '1970-01-01', SYSDATE(6))),
       expires = TIMESTAMPDIFF(MICROSECOND, '1970-01-01', SYSDATE(6)) + 10000000,
       inbox = LAST_INSERT_ID(inbox)
 WHERE namespace = ? AND name = ? AND told = 0
   AND expires > TIMESTAMPDIFF(MICROSECOND, '1970-01-01', SYSDATE(6))
 ORDER BY since LIMIT 1
