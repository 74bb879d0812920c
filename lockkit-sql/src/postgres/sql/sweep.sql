-- The functions that sweep do not say how long they wait for a table that somebody keeps locked.
SELECT lockkit_sweep()
  FROM (SELECT set_config('lock_timeout', '1000', true) OFFSET 0) AS begun
