-- listen
-- ? mark of the session, gate, inbox
-- The locks that this process was told of, or one row after a wait for the gate, which the next one
-- who tells ends. As one statement it misses nothing: what is noted before it is in the rows. So it
-- keeps the table open while it waits, for a second at most.
SELECT COALESCE(IS_USED_LOCK(?) = CONNECTION_ID(), 0) AS is_here,
       CAST(@@global.read_only AS CHAR) NOT IN ('0', 'OFF') AS is_read_only, b.namespace, b.name, b.told,
       IF(b.told IS NULL, GET_LOCK(?, 1), 0) AS is_through
  FROM (SELECT 1 AS one) AS here
  LEFT JOIN lockkit_bell AS b
    ON b.inbox = ? AND b.told > 0 AND b.expires > TIMESTAMPDIFF(MICROSECOND, '1970-01-01', SYSDATE(6))
