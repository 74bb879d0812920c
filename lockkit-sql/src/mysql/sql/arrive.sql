-- ? namespace, name, owner, label, time, expires, namespace, name
-- Leaves a place behind all others. The row of the lock is locked.
INSERT INTO lockkit_place (namespace, name, owner, label, since, expires, arrival)
SELECT ?, ?, ?, ?, ?, ?, COALESCE(MAX(p.arrival), 0) + 1
  FROM lockkit_place AS p WHERE p.namespace = ? AND p.name = ?
