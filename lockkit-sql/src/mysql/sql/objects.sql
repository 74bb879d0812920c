-- The tables of the layout: each with what it is made of. Widths of integers, which only some
-- versions tell, are left out.
SELECT CAST(t.table_name AS CHAR) AS name,
       CAST(GROUP_CONCAT(
           CONCAT_WS(' ', c.column_name,
                     CONCAT(c.data_type, COALESCE(CONCAT('(', c.character_maximum_length, ')'), '')),
                     IF(c.is_nullable = 'YES', NULL, 'not null'),
                     IF(c.column_key = 'PRI', 'key', NULL))
           ORDER BY c.ordinal_position SEPARATOR ', ') AS CHAR) AS made_of,
       CAST(COALESCE(t.engine, '') AS CHAR) AS engine
  FROM information_schema.tables AS t
  JOIN information_schema.columns AS c
    ON c.table_schema = t.table_schema AND c.table_name = t.table_name
 WHERE t.table_schema = DATABASE()
   AND t.table_name IN ('lockkit_lock', 'lockkit_place', 'lockkit_bell', 'lockkit_session',
                        'lockkit_layout')
 GROUP BY t.table_name, t.engine
