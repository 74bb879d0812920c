-- The tables and functions of the layout: each with what it is made of.
WITH ours AS (SELECT relnamespace AS oid FROM pg_class WHERE oid = to_regclass('lockkit_layout'))
SELECT p.proname::text AS name, p.prosrc AS made_of
  FROM pg_proc AS p JOIN ours ON p.pronamespace = ours.oid
 WHERE starts_with(p.proname::text, 'lockkit_')
UNION ALL
SELECT c.relname::text,
       string_agg(concat_ws(' ', a.attname, format_type(a.atttypid, a.atttypmod),
                            CASE WHEN a.attnotnull THEN 'NOT NULL' END), ', ' ORDER BY a.attnum)
  FROM pg_class AS c
  JOIN ours ON c.relnamespace = ours.oid
  JOIN pg_attribute AS a ON a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped
 WHERE c.relkind IN ('r', 'p') AND starts_with(c.relname::text, 'lockkit_')
 GROUP BY c.relname
