-- ? locked, namespace, name, owner, label, session, locked;
--   namespace, name, owner, label, session
--
-- Notes who has the lock, which the session has waited for. The id of the reply is the token; if the
-- session does not have it, no row is affected. Columns are assigned in this order.
INSERT INTO lockkit_session (locked, namespace, name, owner, label, session, since, token)
SELECT ?, ?, ?, ?, ?, ?, TIMESTAMPDIFF(MICROSECOND, '1970-01-01', SYSDATE(6)),
       LAST_INSERT_ID(TIMESTAMPDIFF(MICROSECOND, '1970-01-01', SYSDATE(6)))
  FROM DUAL WHERE IS_USED_LOCK(?) = CONNECTION_ID()
ON DUPLICATE KEY UPDATE
    namespace = ?, name = ?, owner = ?, label = ?, session = ?,
    since = TIMESTAMPDIFF(MICROSECOND, '1970-01-01', SYSDATE(6)),
    token = LAST_INSERT_ID(GREATEST(token + 1, TIMESTAMPDIFF(MICROSECOND, '1970-01-01', SYSDATE(6))))
