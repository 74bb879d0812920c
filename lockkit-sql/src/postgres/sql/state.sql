-- Whether there are tables, and where they would be. Read from the catalogue, since functions such
-- as to_regclass may remember, within a transaction, that there were none.
SELECT EXISTS (
           SELECT 1 FROM pg_class AS c
            WHERE c.relname = 'lockkit_layout' AND pg_table_is_visible(c.oid)
       ) AS are_there,
       current_schema() AS schema
