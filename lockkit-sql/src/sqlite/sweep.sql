-- $1 clock, $2 now
-- What dead holders and waiters left under names that nobody asks for any more.
BEGIN IMMEDIATE;
DELETE FROM lockkit_hold WHERE clock = $1 AND expires <= $2;
DELETE FROM lockkit_place WHERE clock = $1 AND expires <= $2;
COMMIT;
