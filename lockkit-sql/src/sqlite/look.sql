-- $1 namespace, $2 name, $3 owner, $4 clock, $5 now
-- The hold, then the places that matter: the first one, the owner's and that before it, and those in
-- doubt. What has run out is left out. However many places there are, few are looked at.
SELECT 'hold' AS kind, owner, token, ttl, expires, clock, 0 AS arrival
  FROM lockkit_hold
 WHERE namespace = $1 AND name = $2 AND NOT (clock = $4 AND expires <= $5)
UNION ALL
SELECT 'place', owner, 0, ttl, expires, clock, arrival
  FROM lockkit_place
 WHERE arrival IN (
           SELECT min(arrival) FROM lockkit_place
            WHERE namespace = $1 AND name = $2 AND NOT (clock = $4 AND expires <= $5)
           UNION ALL
           SELECT max(arrival) FROM lockkit_place
            WHERE namespace = $1 AND name = $2 AND NOT (clock = $4 AND expires <= $5)
              AND arrival < (SELECT arrival FROM lockkit_place WHERE owner = $3)
           UNION ALL
           SELECT arrival FROM lockkit_place
            WHERE owner = $3 AND NOT (clock = $4 AND expires <= $5)
           UNION ALL
           SELECT arrival FROM lockkit_place
            WHERE namespace = $1 AND name = $2 AND clock < $4
           UNION ALL
           SELECT arrival FROM lockkit_place
            WHERE namespace = $1 AND name = $2 AND clock > $4
           UNION ALL
           SELECT arrival FROM lockkit_place
            WHERE namespace = $1 AND name = $2 AND clock = $4 AND expires - ttl > $5)
 ORDER BY arrival;
