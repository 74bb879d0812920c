-- ? namespace, name, namespace, name
-- The hold, then the places in order. What has run out is left out.
SELECT 0 AS is_place, l.name, l.owner, l.label, l.token, now.time - l.since AS age,
       l.expires - now.time AS remaining, 0 AS arrival
  FROM lockkit_lock AS l,
       (SELECT TIMESTAMPDIFF(MICROSECOND, '1970-01-01', SYSDATE(6)) AS time) AS now
 WHERE l.namespace = ? AND l.name = ? AND l.owner IS NOT NULL AND l.expires > now.time
UNION ALL
SELECT 1, p.name, p.owner, p.label, 0, now.time - p.since, p.expires - now.time, p.arrival
  FROM lockkit_place AS p,
       (SELECT TIMESTAMPDIFF(MICROSECOND, '1970-01-01', SYSDATE(6)) AS time) AS now
 WHERE p.namespace = ? AND p.name = ? AND p.expires > now.time
 ORDER BY is_place, arrival
