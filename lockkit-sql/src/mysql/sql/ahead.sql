-- ? namespace, name, time, namespace, name, time, owner
-- The owner's place and the one just before it; the last of all if the owner has none. The row of the
-- lock is locked.
SELECT owner, arrival FROM lockkit_place FORCE INDEX (lockkit_place_order)
 WHERE namespace = ? AND name = ? AND expires > ?
   AND arrival <= COALESCE((SELECT own.arrival FROM lockkit_place AS own
                             WHERE own.namespace = ? AND own.name = ? AND own.expires > ?
                               AND own.owner = ?), 9223372036854775807)
 ORDER BY arrival DESC LIMIT 2
