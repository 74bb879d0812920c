-- $1, $2 mark; $3 whether to end the session, and not only what it does
-- A row says that there is a session with that mark. The user who has logged in may do this to sessions
-- of its own; the role that is set for it, if there is one, may not.
SELECT CASE WHEN set_config('role', 'none', true) <> 'none' THEN false
            WHEN $3::boolean THEN pg_terminate_backend(pid)
            ELSE pg_cancel_backend(pid) END
  FROM pg_locks
 WHERE locktype = 'advisory' AND granted AND objsubid = 2
   AND classid = $1::integer::oid AND objid = $2::integer::oid
