-- The first problem, or 'ok'.
PRAGMA quick_check(1);
