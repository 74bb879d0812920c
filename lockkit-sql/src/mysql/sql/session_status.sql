-- ? locked, locked
-- Who holds the lock, if anybody does. A session that took it otherwise has no owner: what a session
-- writes into rows is a lock of its own, by which it is known as long as it lives. The limit has the
-- server ask once who holds the lock: without, MySQL asks again for each place that the id stands in,
-- and it may be another's by then, or nobody's.
SELECT CAST(l.id AS SIGNED) AS id, s.namespace, s.name, s.owner, s.label, s.token,
       TIMESTAMPDIFF(MICROSECOND, '1970-01-01', SYSDATE(6)) - s.since AS age, s.session
  FROM (SELECT IS_USED_LOCK(?) AS id LIMIT 1) AS l
  LEFT JOIN lockkit_session AS s ON s.locked = ? AND IS_USED_LOCK(s.session) = l.id
 WHERE l.id IS NOT NULL
