-- How the server is set up, as far as locks are concerned. Reads only what everybody may read.
SELECT current_setting('server_version') AS version,
       current_setting('server_version_num')::integer AS version_number,
       current_setting('fsync') = 'on' AS syncs,
       current_setting('full_page_writes') = 'on' AS writes_full_pages,
       current_setting('synchronous_commit') AS synchronous_commit,
       current_setting('synchronous_standby_names') <> '' AS waits_for_standbys,
       (SELECT count(*) FROM pg_stat_replication) AS standbys,
       (SELECT relpersistence = 'p' FROM pg_class WHERE oid = to_regclass('lockkit_lock'))
           AS is_logged,
       (SELECT setting::bigint FROM pg_settings WHERE name = 'statement_timeout')
           AS statement_timeout,
       coalesce((SELECT setting::bigint FROM pg_settings WHERE name = 'idle_session_timeout'), 0)
           AS idle_session_timeout,
       current_setting('max_connections')::bigint AS most_connections,
       (SELECT sum(numbackends)::bigint FROM pg_stat_database) AS connections,
       pg_notification_queue_usage() AS news_queue,
       current_setting('autovacuum') = 'on' AND NOT EXISTS (
           SELECT 1 FROM pg_class, pg_options_to_table(reloptions) AS o
            WHERE oid IN (to_regclass('lockkit_lock'), to_regclass('lockkit_place'))
              AND CASE o.option_name WHEN 'autovacuum_enabled' THEN NOT o.option_value::boolean
                  END) AS is_vacuumed,
       (SELECT coalesce(sum(n_dead_tup), 0)::bigint FROM pg_stat_user_tables
         WHERE relid IN (to_regclass('lockkit_lock'), to_regclass('lockkit_place')))
           AS dead_rows,
       current_user::text AS who,
       format('GRANT SELECT, INSERT, UPDATE, DELETE ON lockkit_lock, lockkit_place TO %I', current_user)
           AS tables_to_grant,
       current_setting('transaction_read_only') = 'on' AS is_read_only,
       array_to_string(ARRAY(
           SELECT t.name || ': ' || r.name
             FROM (VALUES ('lockkit_lock'), ('lockkit_place')) AS t (name),
                  (VALUES ('SELECT'), ('INSERT'), ('UPDATE'), ('DELETE')) AS r (name)
            WHERE NOT has_table_privilege(t.name, r.name)
           UNION
           SELECT f.name || ': EXECUTE'
             FROM (VALUES ('pg_advisory_lock_shared(integer,integer)'),
                          ('pg_try_advisory_lock(integer,integer)'),
                          ('pg_advisory_unlock(integer,integer)')) AS f (name)
            WHERE NOT has_function_privilege(f.name, 'EXECUTE')
           UNION
           SELECT 'functions: EXECUTE'
             FROM pg_proc AS p JOIN pg_class AS t ON t.relnamespace = p.pronamespace
            WHERE t.oid = to_regclass('lockkit_layout') AND p.proname ~ '^lockkit_(?!session_|row_lock$|xact_lock$)'
              AND NOT has_function_privilege(p.oid, 'EXECUTE')), ', ') AS missing_rights
