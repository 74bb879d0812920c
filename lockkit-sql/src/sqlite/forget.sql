-- $1 namespace, $2 name, $3 owner, $4 clock, $5 expires, $6 ttl
-- Only the very row that was watched; a sign of life since then has changed it.
BEGIN IMMEDIATE;
DELETE FROM lockkit_hold
 WHERE namespace = $1 AND name = $2 AND owner = $3 AND clock = $4 AND expires = $5 AND ttl = $6
RETURNING owner;
DELETE FROM lockkit_place
 WHERE namespace = $1 AND name = $2 AND owner = $3 AND clock = $4 AND expires = $5 AND ttl = $6
RETURNING owner;
COMMIT;
