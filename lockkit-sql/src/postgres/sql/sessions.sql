-- $1 namespace
-- Every lock that a session holds, by name.
SELECT l.pid, a.application_name AS program, s.namespace, s.name, s.owner, s.label, s.token,
       lockkit_now() - s.since AS age
  FROM pg_locks AS l
  JOIN lockkit_session AS s
    ON s.key = (l.classid::bigint << 32 | l.objid::bigint) AND s.pid = l.pid
  LEFT JOIN pg_stat_activity AS a ON a.pid = l.pid
 WHERE l.locktype = 'advisory' AND l.granted AND l.objsubid = 1
   AND l.database = (SELECT oid FROM pg_database WHERE datname = current_database())
   AND a.application_name = 'lockkit' AND s.namespace = $1 AND s.owner IS NOT NULL
 ORDER BY s.name
