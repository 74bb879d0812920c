-- ? lease, lease, namespace, name, owner
-- Makes the hold last for another full lease, and never shortens it. A row is matched if there is one.
UPDATE lockkit_lock
   SET beat = beat + 1, settled = settled + 1, lease = GREATEST(lease, ?),
       expires = GREATEST(expires, TIMESTAMPDIFF(MICROSECOND, '1970-01-01', SYSDATE(6)) + ?)
 WHERE namespace = ? AND name = ? AND owner = ?
   AND expires > TIMESTAMPDIFF(MICROSECOND, '1970-01-01', SYSDATE(6))
