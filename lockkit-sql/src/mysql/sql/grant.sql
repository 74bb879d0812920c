-- ? namespace, name, owner, label, lease, namespace, name
-- Takes the lock, whose row is locked, and says until when somebody else has a place. The id of the
-- reply is the token.
UPDATE lockkit_lock
   SET queued = (SELECT COALESCE(MAX(p.expires), 0) FROM lockkit_place AS p
                  WHERE p.namespace = ? AND p.name = ?),
       owner = ?, label = ?, lease = ?, beat = beat + 2, settled = beat,
       since = TIMESTAMPDIFF(MICROSECOND, '1970-01-01', SYSDATE(6)), expires = since + lease,
       token = LAST_INSERT_ID(GREATEST(token + 1, since))
 WHERE namespace = ? AND name = ?
