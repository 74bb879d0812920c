-- $1 namespace, $2 name
-- The hold, the places in order, and how many listen. What has run out is left out.
SELECT 'hold' AS kind, l.name, l.owner, l.label, l.token, now - l.since AS age,
       l.expires - now AS remaining, 0::bigint AS arrival, 0::bigint AS listeners
  FROM lockkit_lock AS l, lockkit_now() AS now
 WHERE l.namespace = $1 AND l.name = $2 AND l.owner IS NOT NULL AND l.expires > now
UNION ALL
SELECT 'place', p.name, p.owner, p.label, 0, now - p.since, p.expires - now, p.arrival, 0
  FROM lockkit_place AS p, lockkit_now() AS now
 WHERE p.namespace = $1 AND p.name = $2 AND p.turn = 0 AND p.expires > now
UNION ALL
SELECT 'listeners', $2, NULL, NULL, 0, 0, 0, 0, count(DISTINCT p.inbox)
  FROM lockkit_place AS p, lockkit_now() AS now
 WHERE p.namespace = $1 AND p.name = $2 AND p.expires > now
 ORDER BY arrival
