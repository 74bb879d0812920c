-- $1 namespace, $2 name, $3 owner, $4 clock, $5 now, $6 ttl, $7 wall clock, $8 1 to leave a place,
-- $9 label
BEGIN IMMEDIATE;

-- What has run out is gone. What counts on another clock is not ours to judge here.
DELETE FROM lockkit_hold
 WHERE namespace = $1 AND name = $2 AND clock = $4 AND expires <= $5;
DELETE FROM lockkit_place
 WHERE namespace = $1 AND name = $2 AND clock = $4 AND expires <= $5;

-- The holder asks again: the same grant, refreshed and never shortened.
UPDATE lockkit_hold
   SET ttl = CASE WHEN expires > $5 + $6 THEN ttl ELSE $6 END, expires = max(expires, $5 + $6)
 WHERE namespace = $1 AND name = $2 AND owner = $3;

-- Nobody holds it and nobody waits before this claim: it is granted.
INSERT INTO lockkit_hold (namespace, name, owner, label, token, ttl, since, expires, clock)
SELECT $1, $2, $3, $9, max(last + 1, $7), $6, $5, $5 + $6, $4
  FROM lockkit_counter
 WHERE NOT EXISTS (SELECT 1 FROM lockkit_hold WHERE namespace = $1 AND name = $2)
   AND coalesce(
           (SELECT owner FROM lockkit_place
             WHERE namespace = $1 AND name = $2 ORDER BY arrival LIMIT 1),
           $3
       ) = $3;
UPDATE lockkit_counter SET last = hold.token
  FROM lockkit_hold AS hold
 WHERE hold.namespace = $1 AND hold.name = $2 AND hold.owner = $3 AND hold.token > last;
DELETE FROM lockkit_place
 WHERE owner = $3
   AND EXISTS (SELECT 1 FROM lockkit_hold WHERE namespace = $1 AND name = $2 AND owner = $3);

-- Refused: a claim that is to be served in order leaves a place, or refreshes the one it has.
INSERT INTO lockkit_place (namespace, name, owner, label, ttl, since, expires, clock)
SELECT $1, $2, $3, $9, $6, $5, $5 + $6, $4
 WHERE $8
   AND NOT EXISTS (SELECT 1 FROM lockkit_hold WHERE namespace = $1 AND name = $2 AND owner = $3)
ON CONFLICT (owner) DO UPDATE
   SET ttl = CASE WHEN expires > excluded.expires THEN ttl ELSE excluded.ttl END,
       expires = max(expires, excluded.expires);

