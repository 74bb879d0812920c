-- What the driver relies on, whatever the server's defaults are: times without a time zone, each
-- statement a transaction unless one was begun, no transaction that begins because another one has
-- ended, whole answers, updates and looks however the server finds the rows, and an error where a
-- value does not fit. Nobody waits for more than a second for a row or a table that another session
-- keeps locked. MariaDB has other idle time-outs for transactions, which would come before ours. The
-- comments with a mark are for MariaDB and for MySQL alone.
SET NAMES utf8mb4, time_zone = '+00:00', autocommit = 1, completion_type = 0,
    sql_select_limit = 18446744073709551615, group_concat_max_len = 1048576, sql_safe_updates = 0,
    sql_big_selects = 1,
    sql_mode = 'STRICT_ALL_TABLES,NO_ENGINE_SUBSTITUTION',
    innodb_lock_wait_timeout = 1, lock_wait_timeout = 1, wait_timeout = 28800
    /*M! , max_statement_time = 0, idle_transaction_timeout = 0,
      idle_readonly_transaction_timeout = 0, idle_write_transaction_timeout = 0 */
    /*!50708 , max_execution_time = 0 */;
SET SESSION TRANSACTION ISOLATION LEVEL READ COMMITTED;
SELECT CAST(@@global.read_only AS CHAR) NOT IN ('0', 'OFF') AS is_read_only,
       @@innodb_lock_wait_timeout AS patience;
