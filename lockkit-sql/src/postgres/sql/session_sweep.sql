-- As in the sweep of leases, a table that somebody keeps locked is not waited for for long.
SELECT lockkit_session_sweep()
  FROM (SELECT set_config('lock_timeout', '1000', true) OFFSET 0) AS begun
