-- ? lease, lease, namespace, name, owner
-- Makes the hold last for another full lease, and never shortens it. A row is matched if there is one.
-- Where no writes are allowed any more this fails, whoever asks: NULL is no beat.
UPDATE lockkit_lock
   SET beat = IF(CAST(@@global.read_only AS CHAR) IN ('0', 'OFF'), beat + 1, NULL),
       settled = settled + 1, lease = GREATEST(lease, ?),
       expires = GREATEST(expires, TIMESTAMPDIFF(MICROSECOND, '1970-01-01', SYSDATE(6)) + ?)
 WHERE namespace = ? AND name = ? AND owner = ?
   AND expires > TIMESTAMPDIFF(MICROSECOND, '1970-01-01', SYSDATE(6))
