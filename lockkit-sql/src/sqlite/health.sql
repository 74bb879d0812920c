-- $1 namespace, $2 clock
-- How the file is set up, and how many rows of the namespace count on another clock.
SELECT sqlite_version() AS sqlite,
       journal_mode,
       synchronous,
       page_count * page_size AS size,
       (SELECT count(*) FROM lockkit_hold WHERE namespace = $1 AND clock <> $2)
         + (SELECT count(*) FROM lockkit_place WHERE namespace = $1 AND clock <> $2) AS elsewhere
  FROM pragma_journal_mode, pragma_synchronous, pragma_page_count, pragma_page_size;
