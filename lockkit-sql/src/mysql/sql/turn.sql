-- ? owner, owner, label, lease; namespace, name; owner, whether only what is told next may be taken
--   over, token, beat; owner
-- Takes the lock if nobody holds it and the owner's place is the first, and says until when somebody
-- else has one. The id of the reply is the token. The owner's place stays.
-- Where no writes are allowed any more this fails, as in `renew.sql`.
UPDATE lockkit_lock AS l
   SET queued = COALESCE((SELECT p.expires FROM lockkit_place AS p FORCE INDEX (lockkit_place_end)
                           WHERE p.namespace = l.namespace AND p.name = l.name AND p.owner <> ?
                           ORDER BY p.expires DESC LIMIT 1), 0),
       owner = ?, label = ?, lease = ?,
       beat = IF(CAST(@@global.read_only AS CHAR) IN ('0', 'OFF'), beat + 2, NULL), settled = beat,
       since = TIMESTAMPDIFF(MICROSECOND, '1970-01-01', SYSDATE(6)), expires = since + lease,
       token = LAST_INSERT_ID(GREATEST(token + 1, since))
 WHERE namespace = ? AND name = ?
   AND (owner IS NULL
        OR expires <= TIMESTAMPDIFF(MICROSECOND, '1970-01-01', SYSDATE(6))
           AND (owner = ? OR NOT ? OR token = ? AND beat = ?))
   AND ? = (SELECT p.owner FROM lockkit_place AS p FORCE INDEX (lockkit_place_order)
             WHERE p.namespace = l.namespace AND p.name = l.name
               AND p.expires > TIMESTAMPDIFF(MICROSECOND, '1970-01-01', SYSDATE(6))
             ORDER BY p.arrival LIMIT 1)
