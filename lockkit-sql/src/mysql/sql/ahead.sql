-- ? namespace, name, time, namespace, name, time, owner
-- Whose place is just before the owner's; the last of all if the owner has none. The row of the lock
-- is locked.
SELECT owner FROM lockkit_place FORCE INDEX (lockkit_place_order)
 WHERE namespace = ? AND name = ? AND expires > ?
   AND arrival < COALESCE((SELECT own.arrival FROM lockkit_place AS own
                            WHERE own.namespace = ? AND own.name = ? AND own.expires > ?
                              AND own.owner = ?), 9223372036854775807)
 ORDER BY arrival DESC LIMIT 1
