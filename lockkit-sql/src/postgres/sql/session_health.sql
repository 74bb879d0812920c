-- How the server is set up, as far as locks of sessions are concerned. Reads only what everybody may
-- read.
SELECT current_setting('server_version') AS version,
       current_setting('max_connections')::bigint AS most_connections,
       (SELECT sum(numbackends)::bigint FROM pg_stat_database) AS connections,
       -- What the table of locks was made for, https://www.postgresql.org/docs/current/runtime-config-locks.html
       current_setting('max_locks_per_transaction')::bigint
           * (current_setting('max_connections')::bigint
              + current_setting('max_prepared_transactions')::bigint) AS most_locks,
       (SELECT count(*) FROM pg_locks WHERE locktype = 'advisory') AS locks,
       (SELECT count(*) FROM pg_stat_replication) AS standbys,
       pg_notification_queue_usage() AS news_queue,
       current_user::text AS who,
       format('GRANT SELECT, INSERT, UPDATE, DELETE ON lockkit_session TO %I', current_user)
           AS tables_to_grant,
       current_setting('transaction_read_only') = 'on' AS is_read_only,
       array_to_string(ARRAY(
           SELECT 'lockkit_session: ' || r.name
             FROM (VALUES ('SELECT'), ('INSERT'), ('UPDATE'), ('DELETE')) AS r (name)
            WHERE NOT has_table_privilege('lockkit_session', r.name)
           UNION
           SELECT 'functions: EXECUTE'
             FROM pg_proc AS p JOIN pg_class AS t ON t.relnamespace = p.pronamespace
            WHERE t.oid = to_regclass('lockkit_layout') AND p.proname ~ '^lockkit_(session_|now$)'
              AND NOT has_function_privilege(p.oid, 'EXECUTE')), ', ') AS missing_rights
