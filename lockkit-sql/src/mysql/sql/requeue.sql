-- ? namespace, name, namespace, name
-- Says until when somebody has a place. The row of the lock is locked.
UPDATE lockkit_lock
   SET queued = (SELECT COALESCE(MAX(p.expires), 0) FROM lockkit_place AS p
                  WHERE p.namespace = ? AND p.name = ?)
 WHERE namespace = ? AND name = ?
