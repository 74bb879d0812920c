-- ? locked, namespace, name, owner, label, session, locked;
--   namespace, name, owner, label, session
--
-- Takes the lock for the session, which must not have it: it would be let in. The id of the reply is
-- the token; refused, no row is affected. Columns are assigned in this order.
INSERT INTO lockkit_session (locked, namespace, name, owner, label, session, since, token)
SELECT ?, ?, ?, ?, ?, ?, TIMESTAMPDIFF(MICROSECOND, '1970-01-01', SYSDATE(6)),
       LAST_INSERT_ID(TIMESTAMPDIFF(MICROSECOND, '1970-01-01', SYSDATE(6)))
  FROM DUAL WHERE GET_LOCK(?, 0) = 1
ON DUPLICATE KEY UPDATE
    namespace = ?, name = ?, owner = ?, label = ?, session = ?,
    since = TIMESTAMPDIFF(MICROSECOND, '1970-01-01', SYSDATE(6)),
    token = LAST_INSERT_ID(GREATEST(token + 1, TIMESTAMPDIFF(MICROSECOND, '1970-01-01', SYSDATE(6))))
