-- ? namespace, name, owner, label, lease;
--   owner, owner, whether only what is told next may be taken over, token, beat;
--   owner, label, lease, lease, lease; how long to wait, twice, 0 if the owner does not listen
--
-- Takes the lock if nobody holds it and nobody has a place, or if the owner has it already. The id
-- of the reply is the token of the hold; of a refusal it is what is left of the other's, negative.
-- Where no writes are allowed any more this fails, whoever asks and whatever row there is: NULL is no
-- beat.
--
-- Columns are assigned in this order, the first of them with the row locked: it decides, and by how
-- much it rises tells the others how. SYSDATE is the time at which it is called, NOW would be that
-- at which the statement began, perhaps to wait for the row.
INSERT INTO lockkit_lock
    (namespace, name, owner, label, lease, queued, awaited, beat, settled, since, token, expires)
VALUES (?, ?, ?, ?, ?, 0, 0, IF(CAST(@@global.read_only AS CHAR) IN ('0', 'OFF'), 2, NULL), 2,
        TIMESTAMPDIFF(MICROSECOND, '1970-01-01', SYSDATE(6)), LAST_INSERT_ID(since), since + lease)
ON DUPLICATE KEY UPDATE
    beat = beat + CASE
        WHEN owner = ? AND expires > TIMESTAMPDIFF(MICROSECOND, '1970-01-01', SYSDATE(6)) THEN 1
        WHEN queued <= TIMESTAMPDIFF(MICROSECOND, '1970-01-01', SYSDATE(6))
             AND (owner IS NULL
                  OR expires <= TIMESTAMPDIFF(MICROSECOND, '1970-01-01', SYSDATE(6))
                     AND (owner = ? OR NOT ? OR token = ? AND beat = ?)) THEN 2
        ELSE 0 END,
    owner = IF(beat = settled + 2, ?, owner),
    label = IF(beat = settled + 2, ?, label),
    since = IF(beat = settled + 2, TIMESTAMPDIFF(MICROSECOND, '1970-01-01', SYSDATE(6)), since),
    token = IF(beat = settled + 2, GREATEST(token + 1, since), token),
    lease = CASE beat - settled WHEN 2 THEN ? WHEN 1 THEN GREATEST(lease, ?) ELSE lease END,
    expires = CASE beat - settled
        WHEN 2 THEN since + lease
        WHEN 1 THEN GREATEST(
            expires, TIMESTAMPDIFF(MICROSECOND, '1970-01-01', SYSDATE(6)) + ?)
        ELSE expires END,
    awaited = IF(beat = settled
                 AND awaited < TIMESTAMPDIFF(MICROSECOND, '1970-01-01', SYSDATE(6)) + NULLIF(?, 0) DIV 2,
                 TIMESTAMPDIFF(MICROSECOND, '1970-01-01', SYSDATE(6)) + ?, awaited),
    settled = IF(LAST_INSERT_ID(IF(beat > settled, token, LEAST(-1,
            TIMESTAMPDIFF(MICROSECOND, '1970-01-01', SYSDATE(6))
            - IF(expires > TIMESTAMPDIFF(MICROSECOND, '1970-01-01', SYSDATE(6)),
                 expires, queued)))), beat, beat)
