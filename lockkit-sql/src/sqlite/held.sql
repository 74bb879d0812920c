-- $1 namespace
-- What status.sql has, of every lock with a hold, by name.
SELECT 'hold' AS kind, name, owner, label, token, ttl, since, expires, clock, 0 AS arrival
  FROM lockkit_hold
 WHERE namespace = $1
UNION ALL
SELECT 'place', name, owner, label, 0, ttl, since, expires, clock, arrival
  FROM lockkit_place
 WHERE namespace = $1 AND name IN (SELECT name FROM lockkit_hold WHERE namespace = $1)
 ORDER BY name, arrival;
