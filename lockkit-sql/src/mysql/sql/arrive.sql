-- ? namespace, name, owner, label, inbox, time, expires, namespace, name
-- Leaves a place behind all others. The row of the lock is locked. The id of the reply is the arrival.
INSERT INTO lockkit_place (namespace, name, owner, label, inbox, since, expires, arrival)
SELECT ?, ?, ?, ?, ?, ?, ?, LAST_INSERT_ID(COALESCE(MAX(p.arrival), 0) + 1)
  FROM lockkit_place AS p WHERE p.namespace = ? AND p.name = ?
