-- ? session, locked
-- What else the session holds.
SELECT s.name FROM lockkit_session AS s
 WHERE s.session = ? AND s.locked <> ? AND IS_USED_LOCK(s.locked) = IS_USED_LOCK(s.session)
 ORDER BY s.name
