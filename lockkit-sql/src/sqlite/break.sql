-- $1 namespace, $2 name, $3 owner or '' for anybody, $4 clock, $5 now
BEGIN IMMEDIATE;

DELETE FROM lockkit_hold
 WHERE namespace = $1 AND name = $2 AND $3 IN ('', owner)
RETURNING 'hold' AS kind, owner, label, token, ttl, since, expires, clock, 0 AS arrival;

-- Whose turn it is now.
SELECT 'next' AS kind, owner
  FROM lockkit_place
 WHERE namespace = $1 AND name = $2 AND NOT (clock = $4 AND expires <= $5)
 ORDER BY arrival LIMIT 1;

COMMIT;
