-- $1 namespace
-- The same of every lock that is held, by name.
WITH held AS (
    SELECT l.*, now FROM lockkit_lock AS l, lockkit_now() AS now
     WHERE l.namespace = $1 AND l.owner IS NOT NULL AND l.expires > now
)
SELECT 'hold' AS kind, h.name, h.owner, h.label, h.token, h.now - h.since AS age,
       h.expires - h.now AS remaining, 0::bigint AS arrival, 0::bigint AS listeners
  FROM held AS h
UNION ALL
SELECT 'place', p.name, p.owner, p.label, 0, h.now - p.since, p.expires - h.now, p.arrival, 0
  FROM held AS h JOIN lockkit_place AS p ON p.namespace = $1 AND p.name = h.name
 WHERE p.turn = 0 AND p.expires > h.now
UNION ALL
SELECT 'listeners', h.name, NULL, NULL, 0, 0, 0, 0,
       (SELECT count(DISTINCT p.inbox) FROM lockkit_place AS p
         WHERE p.namespace = $1 AND p.name = h.name AND p.expires > h.now)
  FROM held AS h
 ORDER BY name, arrival
