-- $1 namespace, $2 name
-- The hold, then the places in order of arrival; also what has run out.
SELECT 'hold' AS kind, name, owner, label, token, ttl, since, expires, clock, 0 AS arrival
  FROM lockkit_hold
 WHERE namespace = $1 AND name = $2
UNION ALL
SELECT 'place', name, owner, label, 0, ttl, since, expires, clock, arrival
  FROM lockkit_place
 WHERE namespace = $1 AND name = $2
 ORDER BY arrival;
