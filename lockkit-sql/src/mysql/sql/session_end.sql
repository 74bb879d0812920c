-- ? locked, session, owner, session, locked
-- Notes which session is to end: that of the mark, if the lock is still the owner's by it, and the only
-- one; else none. It may have let go since it was looked at, or hold another lock. An id may by then be
-- that of another program's session, after a restart of the server; a mark never is.
SET @lockkit_session = COALESCE((
    SELECT IS_USED_LOCK(s.session) FROM lockkit_session AS s
     WHERE s.locked = ? AND s.session = ? AND s.owner = ?
       AND IS_USED_LOCK(s.locked) = IS_USED_LOCK(s.session)
       AND NOT EXISTS (
           SELECT 1 FROM lockkit_session AS o
            WHERE o.session = ? AND o.locked <> ?
              AND IS_USED_LOCK(o.locked) = IS_USED_LOCK(o.session))), 0)
