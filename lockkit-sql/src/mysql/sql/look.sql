-- ? owner, namespace, name
-- The row of a lock, the owner's place in its queue, and whose place is just before that. Of one
-- moment, and locks nothing.
SELECT l.owner, l.label, l.token, l.since, l.lease, l.expires, l.beat,
       TIMESTAMPDIFF(MICROSECOND, '1970-01-01', SYSDATE(6)) AS time,
       CAST(@@global.read_only AS CHAR) NOT IN ('0', 'OFF') AS is_read_only,
       own.expires AS own_end, own.arrival AS own_arrival,
       (SELECT p.owner FROM lockkit_place AS p FORCE INDEX (lockkit_place_order)
         WHERE p.namespace = l.namespace AND p.name = l.name AND p.arrival < own.arrival
           AND p.expires > TIMESTAMPDIFF(MICROSECOND, '1970-01-01', SYSDATE(6))
         ORDER BY p.arrival DESC LIMIT 1) AS ahead
  FROM lockkit_lock AS l
  LEFT JOIN lockkit_place AS own
    ON own.namespace = l.namespace AND own.name = l.name AND own.owner = ?
 WHERE l.namespace = ? AND l.name = ?
