-- The tables of the layout: each with what it is made of. Widths of integers, which only some
-- versions tell, are left out. Without a join: MariaDB would look at the tables of all databases, and
-- wait for those that are being changed, and take databases for one that differ in case.
SELECT CAST(c.table_name AS CHAR) AS name,
       CAST(GROUP_CONCAT(
           CONCAT_WS(' ', c.column_name,
                     CONCAT(c.data_type, COALESCE(CONCAT('(', c.character_maximum_length, ')'), '')),
                     IF(c.is_nullable = 'YES', NULL, 'not null'),
                     IF(c.column_key = 'PRI', 'key', NULL))
           ORDER BY c.ordinal_position SEPARATOR ', ') AS CHAR) AS made_of,
       CAST(COALESCE((SELECT t.engine
                        FROM information_schema.tables AS t
                       WHERE t.table_schema = DATABASE() AND t.table_name = c.table_name), '')
            AS CHAR) AS engine
  FROM information_schema.columns AS c
 WHERE c.table_schema = DATABASE()
   AND c.table_name IN ('lockkit_lock', 'lockkit_place', 'lockkit_bell', 'lockkit_session',
                        'lockkit_layout')
 GROUP BY c.table_name
