-- The tables and functions of the layout: each with what it is made of, columns or a body, and what
-- else it does by, keys or attributes. Some servers quote all names.
WITH ours AS (SELECT relnamespace AS oid FROM pg_class WHERE oid = to_regclass('lockkit_layout'))
SELECT p.proname::text AS name, p.prosrc AS made_of,
       concat_ws(' ', l.lanname,
                 CASE p.provolatile WHEN 'i' THEN 'IMMUTABLE' WHEN 's' THEN 'STABLE' END,
                 CASE WHEN p.proisstrict THEN 'STRICT' END,
                 CASE WHEN p.prosecdef THEN 'SECURITY DEFINER' END,
                 (SELECT string_agg('SET ' || replace(setting, '=', ' = '), ' ')
                    FROM unnest(p.proconfig) AS setting)) AS works_by
  FROM pg_proc AS p
  JOIN ours ON p.pronamespace = ours.oid
  JOIN pg_language AS l ON l.oid = p.prolang
 WHERE starts_with(p.proname::text, 'lockkit_')
UNION ALL
SELECT c.relname::text,
       string_agg(concat_ws(' ', a.attname, replace(format_type(a.atttypid, a.atttypmod), '"', ''),
                            CASE WHEN a.attnotnull THEN 'NOT NULL' END,
                            CASE WHEN a.atthasdef THEN 'DEFAULT' END,
                            CASE WHEN a.attidentity = 'a' THEN 'IDENTITY' END),
                  ', ' ORDER BY a.attnum),
       -- One that can be deferred, which ON CONFLICT does not heed, says so.
       coalesce((SELECT string_agg(replace(pg_get_constraintdef(k.oid), '"', ''), ', '
                                   ORDER BY k.conname)
                   FROM pg_constraint AS k
                  WHERE k.conrelid = c.oid AND k.contype IN ('p', 'u')), '')
  FROM pg_class AS c
  JOIN ours ON c.relnamespace = ours.oid
  JOIN pg_attribute AS a ON a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped
 WHERE c.relkind IN ('r', 'p') AND starts_with(c.relname::text, 'lockkit_')
 GROUP BY c.oid, c.relname
