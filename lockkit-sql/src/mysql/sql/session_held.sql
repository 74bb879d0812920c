-- ? namespace
-- Every lock that a session holds, by name.
SELECT s.namespace, s.name, s.owner, s.label, s.token,
       TIMESTAMPDIFF(MICROSECOND, '1970-01-01', SYSDATE(6)) - s.since AS age
  FROM lockkit_session AS s
 WHERE s.namespace = ? AND IS_USED_LOCK(s.locked) = IS_USED_LOCK(s.session)
 ORDER BY s.name
