-- What answers at the other end. The mark is a setting of the session: a new connection that finds
-- it set shares its session with others, through a pooler.
SELECT pg_is_in_recovery() AS is_standby,
       current_setting('transaction_read_only') = 'on' AS is_read_only,
       current_setting('server_encoding') AS encoding,
       coalesce(current_setting('lockkit.session', true), '') <> '' AS is_shared,
       set_config('lockkit.session', 'used', false) AS mark,
       pg_backend_pid() AS pid;
