-- ? namespace, name
-- Says until when somebody has a place, but for who holds the lock. The row of the lock is locked.
UPDATE lockkit_lock AS l
   SET queued = COALESCE(
           (SELECT p.expires FROM lockkit_place AS p FORCE INDEX (lockkit_place_end)
             WHERE p.namespace = l.namespace AND p.name = l.name
               AND (l.owner IS NULL OR p.owner <> l.owner
                    OR l.expires <= TIMESTAMPDIFF(MICROSECOND, '1970-01-01', SYSDATE(6)))
             ORDER BY p.expires DESC LIMIT 1), 0)
 WHERE namespace = ? AND name = ?
