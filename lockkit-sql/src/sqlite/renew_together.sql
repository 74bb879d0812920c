-- $1 namespace, name and owner of each, as a list of lists in JSON, $2 clock, $3 now, $4 ttl
-- As `renew.sql` for several. One statement, which is an immediate transaction by itself.
UPDATE lockkit_hold
   SET ttl = CASE WHEN expires > $3 + $4 THEN ttl ELSE $4 END, expires = max(expires, $3 + $4)
  FROM json_each($1) AS wanted
 WHERE namespace = wanted.value ->> 0 AND name = wanted.value ->> 1 AND owner = wanted.value ->> 2
   AND clock = $2 AND expires > $3
RETURNING owner;
