-- ? namespace, name
-- Locks the row of a lock for the transaction. The time is that after the wait for it.
SELECT owner, label, token, since, lease, expires, beat,
       TIMESTAMPDIFF(MICROSECOND, '1970-01-01', SYSDATE(6)) AS time,
       CAST(@@global.read_only AS CHAR) NOT IN ('0', 'OFF') AS is_read_only
  FROM lockkit_lock WHERE namespace = ? AND name = ? FOR UPDATE
