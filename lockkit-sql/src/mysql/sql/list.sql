-- list
-- ? namespace, name, inbox, lease, whether the claim listened before, lease
-- The process is to be told when the lock is let go, in its turn. The id of the reply is not 0 if it
-- was told and has not heard: it will find no row of that any more.
-- Where no writes are allowed any more this fails, as in `take.sql`.
INSERT INTO lockkit_bell (namespace, name, inbox, since, told, expires)
VALUES (?, ?, ?,
        IF(CAST(@@global.read_only AS CHAR) IN ('0', 'OFF'),
           TIMESTAMPDIFF(MICROSECOND, '1970-01-01', SYSDATE(6)), NULL), 0, since + ?)
ON DUPLICATE KEY UPDATE
    since = IF(? OR told = 0 AND expires > TIMESTAMPDIFF(MICROSECOND, '1970-01-01', SYSDATE(6)), since,
               TIMESTAMPDIFF(MICROSECOND, '1970-01-01', SYSDATE(6))),
    told = LAST_INSERT_ID(GREATEST(told, 0)) * 0,
    expires = GREATEST(expires, TIMESTAMPDIFF(MICROSECOND, '1970-01-01', SYSDATE(6)) + ?)
