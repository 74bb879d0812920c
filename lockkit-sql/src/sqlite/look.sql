-- $1 namespace, $2 name, $3 owner, $4 clock, $5 now
-- The hold, then the places that matter: the first one, the owner's and that before it, and those in
-- doubt. What has run out is left out.
SELECT 'hold' AS kind, owner, token, ttl, expires, clock, 0 AS arrival
  FROM lockkit_hold
 WHERE namespace = $1 AND name = $2 AND NOT (clock = $4 AND expires <= $5)
UNION ALL
SELECT 'place', owner, 0, ttl, expires, clock, arrival
  FROM lockkit_place
 WHERE namespace = $1 AND name = $2 AND NOT (clock = $4 AND expires <= $5)
   AND (owner = $3
        OR clock <> $4
        OR expires - ttl > $5
        OR arrival = (SELECT min(arrival) FROM lockkit_place
                       WHERE namespace = $1 AND name = $2 AND NOT (clock = $4 AND expires <= $5))
        OR arrival = (SELECT arrival FROM lockkit_place
                       WHERE namespace = $1 AND name = $2 AND NOT (clock = $4 AND expires <= $5)
                         AND arrival < (SELECT arrival FROM lockkit_place WHERE owner = $3)
                       ORDER BY arrival DESC LIMIT 1))
 ORDER BY arrival;
