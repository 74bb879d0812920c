-- $1 namespace, $2 name, $3 owner, $4 clock, $5 now, $6 ttl
-- One statement, which is an immediate transaction by itself.
UPDATE lockkit_hold
   SET ttl = CASE WHEN expires > $5 + $6 THEN ttl ELSE $6 END, expires = max(expires, $5 + $6)
 WHERE namespace = $1 AND name = $2 AND owner = $3 AND clock = $4 AND expires > $5
RETURNING expires;
