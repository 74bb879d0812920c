SELECT name, sql FROM sqlite_schema WHERE sql IS NOT NULL AND tbl_name GLOB 'lockkit_*' ORDER BY name;
