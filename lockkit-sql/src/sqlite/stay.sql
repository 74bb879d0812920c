-- $1 owners, as a list in JSON, $2 clock, $3 now, $4 ttl
-- Keeps places for another lease, as `take.sql` would. One statement, which is an immediate
-- transaction by itself.
UPDATE lockkit_place
   SET ttl = CASE WHEN expires > $3 + $4 THEN ttl ELSE $4 END, expires = max(expires, $3 + $4)
 WHERE owner IN (SELECT value FROM json_each($1)) AND clock = $2 AND expires > $3
RETURNING owner;
