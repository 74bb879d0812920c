-- $1 namespace, $2 name, $3 owner, $4 clock, $5 now
BEGIN IMMEDIATE;

DELETE FROM lockkit_hold
 WHERE namespace = $1 AND name = $2 AND owner = $3
RETURNING 'hold' AS kind, clock = $4 AND expires > $5 AS stood, owner;
DELETE FROM lockkit_place WHERE owner = $3;

-- Whose turn it is now.
SELECT 'next' AS kind, 0 AS stood, owner
  FROM lockkit_place
 WHERE namespace = $1 AND name = $2 AND NOT (clock = $4 AND expires <= $5)
 ORDER BY arrival LIMIT 1;

COMMIT;
