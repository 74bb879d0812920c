-- $1 key
-- Unlocks what the session has locked: twice if it was locked twice, which the server's locks do not
-- tell before it was unlocked once. To unlock what is not locked would be a warning, in the server's log
-- and in the application's.
SELECT CASE WHEN EXISTS (SELECT FROM pg_locks AS l
                          WHERE l.locktype = 'advisory' AND l.granted AND l.objsubid = 1
                            AND l.pid = pg_backend_pid()
                            AND (l.classid::bigint << 32 | l.objid::bigint) = $1::bigint)
            THEN pg_advisory_unlock($1)
                 AND CASE WHEN EXISTS (SELECT FROM pg_locks AS l
                                        WHERE l.locktype = 'advisory' AND l.granted AND l.objsubid = 1
                                          AND l.pid = pg_backend_pid()
                                          AND (l.classid::bigint << 32 | l.objid::bigint) = $1)
                          THEN pg_advisory_unlock($1)
                          ELSE true END
            ELSE false END AS was_held
