-- What lockkit_sweep() does, for who observes: a row with an owner stays. That its hold is over is
-- not for the server's clock to say, and whoever finds no row takes the lock at once.
WITH idle AS (
    SELECT lockkit_now() - 25::bigint * 3600 * 1000000 AS since
), places AS (
    DELETE FROM lockkit_place AS p WHERE p.ctid = ANY (ARRAY(
        SELECT o.ctid FROM lockkit_place AS o, idle WHERE o.expires < idle.since
         LIMIT 1000 FOR UPDATE OF o SKIP LOCKED))
    RETURNING 1
), locks AS (
    DELETE FROM lockkit_lock AS l WHERE l.ctid = ANY (ARRAY(
        SELECT o.ctid FROM lockkit_lock AS o, idle
         WHERE o.owner IS NULL AND o.expires < idle.since AND o.token < idle.since
         LIMIT 1000 FOR UPDATE OF o SKIP LOCKED))
    RETURNING 1
)
SELECT (SELECT count(*) FROM places) + (SELECT count(*) FROM locks)
