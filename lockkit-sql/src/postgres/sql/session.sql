-- $1 idle time-out, $2 patience with rows that others keep locked, in milliseconds;
-- $3 to $6 when keepalives begin, their spacing, how many go unanswered, and the end of
-- unacknowledged data, as PostgreSQL has them: seconds, seconds, a number, milliseconds.
-- What the administrator has set for the role may end a statement or the session: here it is set
-- for locks. All of it ends with the session, as does the lock that is the session's mark.
SELECT pg_backend_pid() AS pid, current_setting('transaction_read_only') = 'on' AS is_read_only,
       mark.high, mark.low, pg_advisory_lock(mark.high, mark.low)::text,
       set_config('idle_session_timeout', $1, false),
       set_config('lock_timeout', $2, false),
       set_config('tcp_keepalives_idle', $3, false),
       set_config('tcp_keepalives_interval', $4, false),
       set_config('tcp_keepalives_count', $5, false),
       set_config('tcp_user_timeout', $6, false),
       set_config('statement_timeout', '0', false),
       -- By which a session of ours is known. A pooler may have changed it.
       set_config('application_name', 'lockkit', false),
       -- Since PostgreSQL 17.
       (SELECT set_config(s.name, '0', false) FROM pg_settings AS s
         WHERE s.name = 'transaction_timeout'),
       set_config('idle_in_transaction_session_timeout', '0', false),
       set_config('default_transaction_isolation', 'read committed', false)
  -- Of an id that is random but for six bits in its middle.
  FROM (SELECT ('x' || left(id::text, 8))::bit(32)::integer AS high,
               ('x' || right(id::text, 8))::bit(32)::integer AS low
          FROM gen_random_uuid() AS id) AS mark
